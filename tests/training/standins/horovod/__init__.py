"""A small replacement of Horovod, for the tests of its users: the used part of its API, between real processes.

It really averages and broadcasts, over one hub in the chief instead of a ring. It refuses an operation without the same name
in all processes, for which Horovod would wait without end.
"""
