"""`report.html`: a session as one page that needs nothing beside itself.

    build.py     records in, a `Page` out (view.py): what stands where, in words. Pure
    card.py      one measurement's part of it; workers.py, steps.py and again.py are parts of that
    figures.py   drawings, as SVG
    logs.py      what tasks said last, read from the session's folder
    html.py      templates, styles and scripts; a site's pages go through it, too
    writer.py    a `Page` through the templates into the folder

Whatever a host, a test or a file has said reaches a browser as text: templates escape, figures escape, and what cannot be seen
is written out. The page's policy lets a browser run the page's own script and nothing else.
"""
