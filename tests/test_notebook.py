"""Tests of the notebook of the docs."""

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "docs" / "analysis.ipynb"


def test_notebook_gives_its_stored_outputs(tmp_path: Path) -> None:
    """Executed from its beginning, the notebook gives the stored text of each cell, and no cell fails."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = texts(notebook)
    assert sum(map(bool, stored)) == len(stored) == 8
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert texts(notebook) == stored


def texts(notebook: Any) -> list[list[str]]:
    """What each cell of code has shown."""
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[each["data"]["text/plain"] for each in found if "data" in each] for found in outputs]
