-- Wake one who waits.   KEYS wake (list it pops from)   ARGV ms after which the token is gone, should nobody wait any more
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
