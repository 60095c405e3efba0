"""beanstalkd, over greenstalk."""
