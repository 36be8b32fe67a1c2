"""What a host can do, measured while nothing trains by a task of its own, which is `host.py`."""
