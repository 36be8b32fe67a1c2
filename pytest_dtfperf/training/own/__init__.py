"""Models of whoever tests, as only TensorFlow can tell of them: Keras models, and functions of tensors."""
