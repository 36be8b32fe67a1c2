"""How gradients of many devices become one mean on each of them. The algorithms need no TensorFlow: see `work`."""
