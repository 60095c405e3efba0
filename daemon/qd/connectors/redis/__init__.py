"""Laravel's Redis queue, as scripts.

queue                 turn and wait; all else is keyspace/queue.py
wire, owed, speech    one connection; what is written on it and nobody waits for yet; what the replies mean
target, sentinels     its url, and which server that is now
greeting, rights      is it the server that was meant; may this user do what a worker does
opening               how the manager opens queue and keyspace
"""
