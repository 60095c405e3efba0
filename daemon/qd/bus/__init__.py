"""Between an app and its connections, in both directions.

out        send <- route, parcel, skeleton, hooks      every dispatch; chain and batch (several) of more than one
in hand    running, pipeline                           the job that runs and what stands around it
           middleware, places <- asking, common        the middleware that comes with qd, and what it asks the store
the end    ends                                        what it does to lock, chain, batch and record
afterwards results, keyed, retrying, named             a job by its id or key, a batch's failed ones, a queue by name
"""
