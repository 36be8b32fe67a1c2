"""Numbers in, numbers out: which conclusions noisy rates allow, and with which error rates. Knows nothing of training.

scipy is imported when something is judged. It takes half a second, for which no collecting of tests need wait.
"""
