"""A worker: reserve, run, ack. The template forks it.

attempt     one attempt: checks, middleware, the function, async
boot        the template: imports the app once and forks; --reload; check of the servers; first steps after the fork
concurrent  ConcurrentWorker: several jobs at once; when it looks for suspects
connection  turns, answers and checkpoints over a connection that may break; an unreachable server
emitter     collects and sends the events of jobs
lanes       one lane of a ConcurrentWorker: its attempt as a task or in a thread, on a shared event loop
outcome     the outcome of an attempt; failed() and listeners
prefetch    jobs that a Worker fetches ahead
queues      which queues a worker serves, in which order, and which are shut
settle      answers, records and logs an outcome
threads     the threads of a ConcurrentWorker: connection, deadlines, token waits
timeout     alarms, which end a job from outside: SIGALRM, and those of lanes
worker      Worker: one job at a time
"""
