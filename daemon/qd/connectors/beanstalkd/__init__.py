"""Jobs in the tubes of a beanstalkd, as Laravel's beanstalkd driver has them: a tube is a queue, a body its JSON payload."""
