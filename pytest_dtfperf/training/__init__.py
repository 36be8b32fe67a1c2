"""Train in the tasks of a run, on TensorFlow or by an external command, and measure the steps."""
