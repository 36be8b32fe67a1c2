"""The notebook of the docs does what it shows."""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "analysis.ipynb"


def test_the_notebook_gives_the_outputs_that_it_shows(tmp_path: Path) -> None:
    """Run from its beginning in a kernel of its own, every cell gives the text that is stored with it, and none fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = texts(notebook)
    assert sum(map(bool, stored)) == len(stored) == 8
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert texts(notebook) == stored


def texts(notebook: Any) -> list[list[str]]:
    """What each cell of code has shown."""
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[each["data"]["text/plain"] for each in found if "data" in each] for found in outputs]
