"""The migrations of a history, one module for each version."""
