"""Stands in for packages that are not installed here: the folder that a path would have to lead to."""
