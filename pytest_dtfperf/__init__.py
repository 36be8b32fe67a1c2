"""Tells whether distributed TensorFlow training on a cluster is as fast as it should be, and says why when it is not."""
