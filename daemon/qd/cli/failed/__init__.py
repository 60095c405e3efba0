"""`qd failed`: the jobs that have failed for good."""
