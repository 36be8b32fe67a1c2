"""A small stand-in for Horovod, for the tests of what uses it: the part of its API that we call, between real processes.

It averages and broadcasts truly, over one hub in the chief instead of a ring. It is told apart from Horovod by what it refuses:
an operation without the same name in all processes, of which Horovod would wait for ever.
"""
