"""Reports: the terminal, Markdown, HTML pages, figures, and exports for other programs."""
