"""In JupyterLab's place: as much of its server as a tunnel has to do with, at once and without 37 packages."""
