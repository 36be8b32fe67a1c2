"""Show it: the terminal, CSV files, figures and Markdown. Values in, text and files out."""
