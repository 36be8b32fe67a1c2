"""The doctor: checks whether a cluster is suitable for measurements, from each of its hosts."""
