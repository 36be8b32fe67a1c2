"""What brings data to a host, and runs there: Python's own library, `node/` and nothing else."""
