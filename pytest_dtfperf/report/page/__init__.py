"""`report.html`: a session as one page that needs no other file.

    build.py     read a session's folder, make a `Page` (html.py) of its records, and write it
    card.py      make the part of one measurement
    html.py      the view of a page; render templates, styles, scripts and SVG; the pages of a site use it, too

All text from hosts, tests and files is shown as text: templates and drawings escape it, and control characters are
replaced. The page's policy lets a browser run only the page's own script.
"""
