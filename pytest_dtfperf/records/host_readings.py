"""The readings of hosts in a session's folder: hosts.jsonl, one capacity of one host on each line, for the history.

Probes of a session and `dtfperf qualify` append to it. Disturbed readings, and those of simulated hosts, are left out.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.codec import JsonData, ValidationError, describe
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.datamodel.probes import HostProbe
from pytest_dtfperf.datamodel.qualification import HostVerdict, Qualification
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import content_of, list_whole_lines

FILE = "hosts.jsonl"


@dataclass(frozen=True, kw_only=True)
class HostReading(JsonData):
    """One capacity of one host, as a session measured it."""

    host: str = field(metadata=describe("Its name"))
    kind: str = field(metadata=describe("Its hardware"))
    name: str = field(metadata=describe("Of the capacity: core.matmul, memory, gpu.0.matmul, training, link in, link out"))
    per_s: float = field(metadata=describe("FLOP/s, bytes/s or images/s", above=0, at_most=1e24))
    conditions: str = field(default="", metadata=describe("Readings that differ in it are not compared"))
    verdict: HostVerdict | None = field(default=None, metadata=describe("Of a qualification", omit_empty=True))

    @classmethod
    def list_probed(cls, host: str, hardware: Hardware, probe: HostProbe) -> list[Self]:
        """Return the readings of a probe; none for a simulated host."""
        if hardware.simulated:
            return []
        return [
            cls(host=host, kind=system_name(hardware), name=name, per_s=each.per_s, conditions=format_conditions(each.how))
            for name, each in probe.readings.items()
        ]

    @classmethod
    def list_qualified(cls, found: Qualification, conditions: Mapping[str, Mapping[str, str]]) -> list[Self]:
        """Return the readings of a qualification. `conditions`: of each host, by the name of the capacity."""
        return [
            cls(
                host=host,
                kind=result.kind,
                name=name,
                per_s=each.per_s,
                conditions=conditions.get(host, {}).get(name, ""),
                verdict=each.verdict,
            )
            for host, result in found.hosts.items()
            for name, each in result.capacities.items()
            if each.per_s
        ]


def format_conditions(how: Mapping[str, float | str]) -> str:
    """Return the conditions of a probe as one text: `bytes=65536, threads=1`."""
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in sorted(how.items())
    )


def append_host_readings(folder: SessionFolder, readings: Iterable[HostReading]) -> None:
    """Append readings to the folder. A refused write is reported at the session's end, with the other files."""
    lines = [json.dumps(each.to_json(), ensure_ascii=False) for each in readings]
    if lines:
        folder.append(FILE, "".join(f"{line}\n" for line in lines).encode())


def load_host_readings(folder: SessionFolder) -> list[HostReading]:
    """Return the readings in a folder; none if it has no such file. Raises `SessionFileError`."""
    path = folder.path / FILE
    if not os.path.lexists(path):
        return []
    found = []
    for number, line in enumerate(list_whole_lines(content_of(path)), start=1):
        try:
            found.append(HostReading.from_json(json.loads(line)))
        except (ValidationError, ValueError) as exc:
            raise SessionFileError(f"{path}:{number}: is no reading of a host: {printable(str(exc))}") from exc
    return found
