"""A substitute for JupyterLab: the part of its server that a tunnel needs, without its 37 packages."""
