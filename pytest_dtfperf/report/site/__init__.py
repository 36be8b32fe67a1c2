"""A static site over a history: all systems, trainings, sessions and changes as pages that link to each other.

    build.py     what pages there are, and which must be made anew
    files.py     their folder: what is written, what stays, what goes
    names.py     what pages are called
    overview.py  systems with their series; training.py: how one training's rates went; changes.py; sessions.py
    chart.py     rates over time, as SVG
    feeds.py     changes as Atom and as JSON Feed

Templates, style and escaping are those of a session's page (`report/page`), which is a page of the site, too.
"""
