"""What runs jobs.

template, boot        imports the app once and forks; a worker's first steps
first                 the look at the servers before anything runs
served, rota          which queues a `qd work` serves, and in which order a turn looks at them
loop                  may I, take one, do it, settle it, why stop
maintenance, leaving  may I, why stop
attempt, alarm        one attempt: limits, middleware, the user's function, and what ends it from outside
coroutines, hooks     async jobs; failed() and listeners
saving                what the job saves or tells while it runs
outcome, judge        what comes of it
ending, settle        what is answered and said of that
effects               what it does to others in the same step
answering             until the answer is there, and never twice
copying               failed jobs for Laravel's table failed_jobs
telling, titles       the events of a worker's own life; what `ps` shows
reload                --reload: which files have changed
"""
