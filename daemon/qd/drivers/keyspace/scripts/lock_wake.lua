-- Wake the waiter that was given the lock.
-- KEYS wake (the list that it pops from)   ARGV ms after which an unread token expires
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
