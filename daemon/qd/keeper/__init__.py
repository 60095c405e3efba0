"""The process that knows the server and nothing else: leases, due jobs, the jobs of the dead, stamps, the report."""
