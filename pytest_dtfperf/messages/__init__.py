"""Every message that may come from a host: the one place that defines what is in it, and limits its content.

A host may be broken, of another version, or malicious. What it sends is used only when it is here: the name, all
keys and no others, types, sizes, finite numbers; texts come out `printable`. The shapes are as shallow as they are written
here, so that nothing that is nested any deeper passes. What makes sense only in a conversation, such as a task's owner, is
checked where that is known: `hearing.py`.

A file for each program that speaks from there: `agent.py`, `fetch.py`, `checkup.py`, `supervisor.py`. All are tables, and pure.
"""
