"""Runs on allocated hosts: placement of tasks, agents, supervision, and the run's results."""
