"""Laravel's Redis queue, as scripts.

queue                 turn and wait; all else is keyspace/queue.py
client                connections of redis-py, as qd opens them
wire, owed, speech    waits and calls on one of them; what is written on it and nobody waits for yet; what replies mean
target, sentinels     its url, and which server that is now
urls                  is a url one that can be used
credentials           user and password: of the url, or of a credential provider
greeting, rights      is it the server that was meant; may this user do what a worker does
opening               how the manager opens queue and keyspace
"""
