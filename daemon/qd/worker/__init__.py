"""A worker: reserve, run, ack. The template forks it.

attempt     one attempt: checks, middleware, the function, async
boot        first steps after the fork; check of the servers at the start
concurrent  ConcurrentWorker: several jobs at once
connection  turns, answers and checkpoints over a connection that may break; an unreachable server
lanes       one lane of a ConcurrentWorker: its attempt as a task or in a thread, and its alarm
outcome     the outcome of an attempt; failed() and listeners
queues      which queues a worker serves, and in which order
settle      answers, records and logs an outcome
steps       the tasks and threads of a job on a shared event loop
status      events, ps title and maintenance mode of one worker
template    imports the app once and forks; --reload
timeout     SIGALRM: ends a job from outside
worker      Worker: the loop
"""
