"""Replacements of packages that are not installed here: the folder to add to the path."""
