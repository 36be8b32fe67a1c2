"""Data sets made up in their original formats, so that reading them can be measured where there is no original."""
