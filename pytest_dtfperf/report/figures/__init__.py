"""Figures, drawn with matplotlib: charts.py draws one of each kind, sessions.py and report_2017.py choose what is drawn."""
