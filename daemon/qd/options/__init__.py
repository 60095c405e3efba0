"""Every option of a worker and of a job, described once. config fills WorkOptions from its sources, jobs JobOptions."""
