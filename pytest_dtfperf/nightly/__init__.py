"""One night of perf tests: pytest is run and ended in time, its session is summed up, and the exit code says how it was.

night.py     the whole of it
lock.py      one night at a time on each cluster
ended.py     pytest as a process: until it ends, a deadline passes, or a signal comes
losses.py    what is slower than in earlier nights, where no baseline was accepted
summary.py   `summary.md`, for people and for GitHub
"""
