"""The outside worlds a queue can live in. Worker, keeper and bus know the contracts, and no driver.

base, keeping         the contracts: what who sends and works asks, and what a keeper asks besides
effects, batches      what goes with an answer in the same step; what a batch is to a connection
ends                  what the end of a job does to what it is tied to, as such effects
drivers, manager      load a driver (options/drivers.py) when it is used; a name -> its queue, keyspace, first look
connections           the same for an app that sends: one a thread and process
reserver, patience    who opens a connection; how long it waits, and whom it reports progress to

keyspace              what every driver with workers is built on: names of keys, and scripts in Lua that work on them
redis, cluster        such a keyspace by itself: one server, or many
database              another one, in tables; its ready jobs are rows of Laravel's table jobs
borrowed              that of another connection, for servers that keep jobs and nothing else:
beanstalkd, sqs       they are two of these

sending_only          what drivers have in common that nobody works on:
null, failover        they are two of these, and bus/at_once.py is the third
"""
