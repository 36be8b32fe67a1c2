"""Numbers in, numbers out: what noisy rates allow to be said, and with which error rates. Knows nothing of training.

scipy is imported when something is judged. It takes half a second, for which no collecting of tests need wait.
"""
