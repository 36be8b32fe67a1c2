"""What a session leaves for other programs and for people, beside its own files: one table.

Each is called at the session's end, on its own: what keeps one from being written keeps no other.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pytest_dtfperf.errors import ExportFailed
from pytest_dtfperf.extensions import Table
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.results import SessionResults


class Writer(Protocol):
    """Writes files of one form, with `SessionFolder.write`."""

    def __call__(self, folder: SessionFolder, results: SessionResults) -> list[str]:
        """Returns what there is to say about it, in lines; none where nothing was written, for there was nothing to write."""


@dataclass(frozen=True)
class Export:
    """One form in which a session is written."""

    files: tuple[str, ...]  # below the session's folder
    writer: str  # "module:function", a `Writer`

    def write(self, folder: SessionFolder, results: SessionResults) -> list[str]:
        module, _, name = self.writer.partition(":")
        writer: Writer = getattr(importlib.import_module(module), name)
        return writer(folder, results)


_OURS: Mapping[str, Export] = {
    "csv": Export(("measurements.csv", "<model>_b<batch>.csv"), "pytest_dtfperf.report.exports:write_csv_files"),
    "svg": Export(("figures/<model>_b<batch>.svg",), "pytest_dtfperf.report.plots:write_figures"),
    "html": Export(("report.html",), "pytest_dtfperf.report.page.writer:write_page"),
}

# With those of other packages that are installed: docs/extending.md.
EXPORTS: Table[Export] = Table("pytest_dtfperf.exports", Export, _OURS)


def write_export(name: str, folder: SessionFolder, results: SessionResults) -> list[str]:
    """One of `EXPORTS`. Whatever another package's raises is an `ExportFailed` that names it."""
    package = EXPORTS.package_of(name)
    try:
        return EXPORTS[name].write(folder, results)
    except Exception as error:
        if package is None:
            raise
        raise ExportFailed(f"export {name} of {package} failed: {type(error).__name__}: {error}") from error
