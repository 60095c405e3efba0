"""What qd keeps on the server besides the queues: failed jobs, stamps, locks, reports of masters.

audit                Events: what operators did, and what happened to masters.
base                 Store contract, and its implementation on a keyspace.
controls             Restart stamp, pauses, maintenance; Laravel's own such keys.
failed               The failed store: pages, search, retry, forget.
failed_jobs_table    Laravel's table failed_jobs, alone and together with the store.
fleet                Pauses of jobs, hosts and pools; the number of workers of a pool.
locks                Locks, leases, slots and sliding windows, on scripts.
masters              The reports of running masters and their workers.
statistics           How jobs ended and how long they took, as keepers write it.
schedule             Pauses and last runs of schedule entries.
waiting              The jobs that wait in a queue, read in slices.
"""
