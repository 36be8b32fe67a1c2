"""Actions of the workflows are pinned, and their checkouts keep no credentials."""

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.nightly.test_nightly import REPOSITORY

FILES = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned(file: Path) -> None:
    """Every action is pinned to one commit, with its version as a comment."""
    used = re.findall(r"uses: *(.*)", file.read_text())
    assert used
    for each in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_checkouts_keep_no_credentials(file: Path) -> None:
    """No checkout keeps its token."""
    for job in yaml.safe_load(file.read_text())["jobs"].values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
