"""The plugin's hooks."""
