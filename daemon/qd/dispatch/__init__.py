"""Between an app and its connections, in both directions.

batch         app.batch(): sent, asked, retried, or run here.
chain         app.chain().
dispatcher    Dispatcher: the only way out; Queue and Keyed over it.
extensions    Drivers that an app brings: app.extend, sync, failover.
handlers      Commands (app.map) and queued listeners.
local         run(): a job here and now, in this process; batches in memory.
results       Status, result, progress and cancellation of a sent job.
route         What stays the same between dispatches of one job; payload hooks; Parcel.
services      What one app shares: registry, connections, listeners, middleware, declared limits.
sync          The sync driver: every job runs where it is sent.
"""

from __future__ import annotations
