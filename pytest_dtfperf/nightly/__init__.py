"""One night of perf tests: night.py runs pytest in time and reports how it ended; summary.py writes `summary.md`."""
