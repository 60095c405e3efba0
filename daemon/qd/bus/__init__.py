"""Between an app and its connections, in both directions.

send                  the one way out, of every dispatch
route, skeleton       what stays the same from dispatch to dispatch, and a payload with holes
parcel, hooks         a job that is made and not sent yet; what the app adds to its payload
chain, batch          jobs one after the other; jobs that are counted together
several               what both ask of their calls

running, pipeline     the job in hand, and what stands around it
middleware            the middleware that comes with qd
concurrency           that of it which lets only so many run
asking                how middleware asks the store
services              what one app shares

results, keyed        a job that was sent, by its id or its key
retrying, named       the failed ones of a batch; a queue by its name

own                   drivers that an app brings: sync, failover, those of app.extend
at_once, run_at_once  sync: each job runs where it is sent
shared                what all threads have of it
job_here, batch_here  run(): here and now, without a connection
here, memory          what such a job has in place of one
"""
