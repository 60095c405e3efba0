"""`qd schedule`: the entries of the schedule, looked at and steered."""
