"""Connections whose server keeps jobs and nothing else (beanstalkd, SQS): what qd keeps beside them stands in a borrowed
keyspace, that of the control connection."""
