"""Show it: the terminal, the session folder, CSV files, figures and Markdown. Values in, text and files out."""
