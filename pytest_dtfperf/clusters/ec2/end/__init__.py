"""The ends of a run: by its session, by a process beside it, by the next session."""
