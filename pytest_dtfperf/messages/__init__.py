"""Validation of all messages from hosts: their shapes, in tables by program, and what a host may send line by line.

A host may be broken, of another version, or malicious. A message is used only if a table has its name, its keys, their types,
sizes and ranges; texts are made printable. `received.py` also checks what depends on the run, such as the host of a task.
"""
