"""Which hosts and links of an allocation are slow: of a cluster before a job, and of one training."""
