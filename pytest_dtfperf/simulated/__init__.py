"""Simulated clusters: hosts that answer the agents' protocol in virtual time, and train nothing. docs/simulated.md."""
