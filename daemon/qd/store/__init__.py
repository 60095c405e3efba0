"""Small facts that several hosts share.

base, keyspace        the contract, and its home on a keyspace
stamps, hosts         restarts, pauses, maintenance; which masters are there
schedule              entries: paused, and how they last went
failed                the failed store
laravel_failed        Laravel's table failed_jobs, with copies of records
laravel               Laravel's own keys in its cache
locks, rates          places that so many may have; so many in so long
mutex, memory         what one has at a time, on a server or in this process
"""
