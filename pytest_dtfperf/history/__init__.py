"""The database of all sessions: their measurements, the rates over time, and the changes of rates.

SQLAlchemy is imported by `database` and what rests on it, never by this package itself: a session pays for it at its end, where
it writes down what it has measured (`enter`), and plugins and commands that need no history never do.
"""
