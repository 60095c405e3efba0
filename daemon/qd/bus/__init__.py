"""Between an app and its connections, in both directions.

services              what one app shares
send                  the one way out, of every dispatch; a queue by its name; a waiting job by its key
route, skeleton       what stays the same from dispatch to dispatch, and a payload with holes
parcel, hooks         a job that is made and not sent yet; what the app adds to its payload
chain, batch          jobs one after the other; jobs that are counted together
several               what both ask of their calls
handlers              commands (app.map) and queued listeners
results               status, result, progress and cancellation of a sent job

running, pipeline     the current job, and the middleware around it
middleware            the middleware that comes with qd
concurrency           the middleware that limits how many jobs run at once
asking                how middleware asks the store

own                   drivers that an app brings: sync, failover, those of app.extend
at_once               sync: each job runs where it is sent
shared                the state that all threads of it share
local                 the engine of run(), sync and app.inline(): jobs that run in the process that sends them
"""
