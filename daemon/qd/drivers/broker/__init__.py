"""What beanstalkd and SQS have in common: a server that keeps jobs and nothing else, and a borrowed keyspace."""
