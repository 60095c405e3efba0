"""What runs jobs: a loop, an attempt, an alarm. The template imports the app once and forks workers."""
