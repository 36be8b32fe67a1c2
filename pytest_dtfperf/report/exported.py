"""What a session leaves for other programs and for people, beside its own files: one table.

Each is called at the session's end, on its own: what keeps one from being written keeps no other.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.published import Published


class Writer(Protocol):
    """Writes files of one form, with `SessionFolder.write`. `published`: of the models that were measured."""

    def __call__(self, folder: SessionFolder, records: Sequence[Record], published: Sequence[Published] = ()) -> list[str]:
        """Returns what there is to say about it, in lines; none where nothing was written, for there was nothing to write."""


@dataclass(frozen=True)
class Export:
    """One form in which a session is written."""

    files: tuple[str, ...]  # below the session's folder
    writer: str  # "module:function", a `Writer`
    takes_history: bool = False  # its writer has a further argument `history`, as `page.writer` has it

    def write(
        self,
        folder: SessionFolder,
        records: Sequence[Record],
        published: Sequence[Published] = (),
        history: Mapping[str, Past] | None = None,
    ) -> list[str]:
        """`history`: by ids of measurements, their series in earlier sessions."""
        module, _, name = self.writer.partition(":")
        writer = getattr(importlib.import_module(module), name)
        given: Writer = partial(writer, history=history) if self.takes_history else writer
        return given(folder, records, published)


EXPORTS: Mapping[str, Export] = {
    "csv": Export(("measurements.csv", "<model>_b<batch>.csv"), "pytest_dtfperf.report.exports:write"),
    "svg": Export(("figures/<model>_b<batch>.svg",), "pytest_dtfperf.report.plots:write"),
    "html": Export(("report.html",), "pytest_dtfperf.report.page.writer:write", takes_history=True),
}
