"""The process that knows Redis and nothing else: leases, due jobs, the jobs of the dead, stamps, the report."""
