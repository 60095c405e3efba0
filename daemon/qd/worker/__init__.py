"""A worker: reserve, run, ack. The template forks it.

attempt     one attempt: checks, middleware, the function, async
boot        first steps after the fork; check of the servers at the start
connection  turns, answers and checkpoints over a connection that may break; an unreachable server
outcome     the outcome of an attempt; failed() and listeners
queues      which queues a worker serves, and in which order
settle      answers, records and logs an outcome
status      events, ps title and maintenance mode of one worker
template    imports the app once and forks; --reload
timeout     SIGALRM: ends a job from outside
worker      Worker: the loop
"""
