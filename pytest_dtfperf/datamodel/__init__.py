"""The data model: every type that is stored or travels, with units and ranges as field metadata (`codec.py`).

It needs only Python, because hosts use it, and nothing above it but a spec.
"""
