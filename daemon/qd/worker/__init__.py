"""A worker: reserve, run, ack. The template forks it.

attempt     one attempt: checks, middleware, the function, async
boot        first steps after the fork; check of the servers at the start
concurrent  ConcurrentWorker: several jobs at once
connection  turns, answers and checkpoints over a connection that may break; an unreachable server
lane_alarm  ends the attempt of a lane from outside
lanes       one lane of a ConcurrentWorker: its attempt as a task or in a thread
outcome     the outcome of an attempt; failed() and listeners
prefetch    jobs that a Worker fetches ahead
queues      which queues a worker serves, and in which order
settle      answers, records and logs an outcome
status      events, ps title and maintenance mode of one worker
steps       the tasks and threads of a job on a shared event loop
suspects    when a ConcurrentWorker looks for jobs that may have killed a worker
template    imports the app once and forks; --reload
threads     the threads of a ConcurrentWorker: connection, deadlines, token waits
timeout     SIGALRM: ends a job from outside
turns       the turns of a ConcurrentWorker
worker      Worker: one job at a time
"""
