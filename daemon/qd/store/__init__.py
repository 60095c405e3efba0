"""What is kept on the server beside the queues: failed jobs, stamps, locks, reports of masters.

base                 Store contract, and its implementation on a keyspace.
controls             Restart stamp, pauses, maintenance; Laravel's own such keys.
failed               The failed store: pages, search, retry, forget.
failed_jobs_table    Laravel's table failed_jobs, alone and together with the store.
locks                Locks, leases, slots and sliding windows, on scripts.
masters              Which masters are there, and what their workers do.
schedule             What all hosts know of the schedule.
"""
