"""A history with markup and scripts in every string that may come from elsewhere."""

from dataclasses import replace
from typing import Any

from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware, TrainedProgram
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.watching import HistoryData
from tests.report.page.hostile import EVIL
from tests.report.site.made import event, make_history_data, point, series, session

SCHEME = "javascript:window.evil=1//"  # begins what is a link where a string is taken for an address


def make_hostile_history() -> HistoryData:
    """Return sessions with hostile ids, clusters, commands and folders, and hostile series and events."""
    evil = SCHEME + EVIL
    program = TrainedProgram(graph=evil, settings={evil: {}})
    content = Fingerprint(hardware=Hardware(cpu=evil, cores=2), software={evil: evil}, program=program)
    other = replace(content, hardware=Hardware(cpu=EVIL))
    fields: dict[str, Any] = {
        "cluster": evil, "command": ["pytest", evil], "versions": {evil: evil}, "verdicts": {evil: 1, "PASSED": 1},
        "commit": evil, "folder": evil,
    }  # fmt: skip
    nights: list[Row] = [session(night, id=f"../{SCHEME}{night}{EVIL}", **fields) for night in range(9)]
    row: dict[str, Any] = {"spec_key": evil, "label": evil, "model": evil, "system": evil, "verdict": evil}
    one = series([point(night, **row) for night in nights])
    two = series([point(night, **row | {"hosts": 2, "fingerprint": "g"}) for night in nights[:4]])
    three = series([point(night, **row | {"hosts": 2}) for night in nights[5:]])
    changed = event(1, [one], 3, differences=[evil], kind=evil)
    return make_history_data(nights, [one, two, three], [changed], contents={"f": content, "g": other})


def make_harmless_history() -> HistoryData:
    """Return the same history without hostile strings, as a reference of elements and attributes."""
    nights = [session(night) for night in range(9)]
    one = series([point(night) for night in nights])
    two = series([point(night, hosts=2) for night in nights[:4]])
    return make_history_data(nights, [one, two], [event(1, [one], 3)])
