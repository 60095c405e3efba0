"""What a job is: its declaration, policy and context.

context     current_job() and RunningJob: what a job sees of itself.
job         What a producer uses: @app.job, JobFunction, Job, Call.
pipeline    The chain of middleware around a job, and the checks on each.
plan        Dispatch options, Plan, Handle, and the Sender protocol.
policy      Retry policy: may a job run, and what follows an error. Pure.
registry    Declared jobs by name.
steps       job.step(): functions that run once, however often their job is tried.
versions    Versions of the arguments: the upgrade of an older payload.
"""
