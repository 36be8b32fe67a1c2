"""Numbers in, numbers out: what noisy rates allow to be said, and with which error rates. Knows nothing of training."""
