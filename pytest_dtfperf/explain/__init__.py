"""Why training takes as long as it does: traced steps in, seconds that add up out. Pure, and needs no TensorFlow."""
