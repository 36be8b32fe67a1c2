"""Compute which conclusions noisy rates allow, and with which error rates. Numbers in, numbers out: independent of training.

scipy is imported when something is judged. It takes half a second, which collecting of tests need not wait for.
"""
