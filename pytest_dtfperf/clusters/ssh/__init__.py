"""Clusters of hosts that SSH reaches."""
