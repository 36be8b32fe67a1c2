"""Train with TensorFlow 2's own distribution strategies."""
