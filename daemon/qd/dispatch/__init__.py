"""Between an app and its connections: sends jobs, and queries what became of them.

batch         app.batch(): sending, state, retry; run() of a batch.
chain         app.chain().
dispatcher    Dispatcher: sends every job; Queue and Keyed use it.
handlers      Commands (app.map) and queued listeners.
local         run(): jobs in this process; batches in memory.
results       Status, result, progress and cancellation of a sent job.
route         Message, and what all messages of a plan share; payload hooks.
services      What one app shares: registry, connections, own drivers, listeners, middleware, declared limits.
sync          The sync driver: every job runs where it is sent.
"""
