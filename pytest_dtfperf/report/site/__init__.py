"""A static site of a history: systems, trainings, sessions and changes as pages that link to each other.

    build.py     the list of pages, and which of them are written again
    files.py     the folder and the names of pages
    overview.py  systems with their series, and changes of rates as pages, Atom and JSON Feed
    training.py  the rates of one training over time, with a chart
    sessions.py  the list of sessions, and the page of one

Templates, style and escaping are those of a session's page (`report/page`), which is a page of the site, too.
"""
