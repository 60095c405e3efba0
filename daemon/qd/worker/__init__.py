"""A worker: reserve, run, ack. The template forks it.

attempt     One attempt: checks, middleware, the function, async.
boot        First steps after the fork; first look at the servers.
delivery    Answers and checkpoints over a connection that may break.
outcome     What an attempt comes to; failed() and listeners.
queues      Which queues a worker serves, and in which order.
settle      The outcome answered, recorded, logged.
status      Events, ps title and maintenance mode of one worker.
template    Imports the app once and forks; --reload.
timeout     SIGALRM: what ends a job from outside.
worker      Worker: the loop.
"""
