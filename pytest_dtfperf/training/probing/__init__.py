"""Measure what hosts and links can do, while nothing trains. `host` is the task that does so."""
