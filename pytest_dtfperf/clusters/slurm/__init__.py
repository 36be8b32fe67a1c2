"""Clusters that lend their nodes through Slurm."""
