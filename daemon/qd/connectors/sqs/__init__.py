"""Amazon SQS, over boto3."""
