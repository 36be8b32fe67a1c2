"""Baselines: accepted and published measurements, and the verdict on a comparison with them."""
