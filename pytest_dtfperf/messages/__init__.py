"""Every message that may come from a host: the one place that says what is in it, and holds what came against that.

A host may be broken, of another version, or somebody's who means ill. What it sends is used only when it is here: the name, all
keys and no others, types, sizes, finite numbers; texts come out `printable`. The shapes are as shallow as they are written
here, so that nothing that is nested any deeper passes. What makes sense only in a conversation, such as whose task it is, is
checked where that is known: `hearing.py`.

A file for each program that speaks from there: `agent.py`, `fetch.py`, `checkup.py`, `supervisor.py`. All are tables, and pure.
"""
