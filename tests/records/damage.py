"""A session folder with everything that a session can have, and thousands of numbered ways to damage it."""

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Kind, PublishedRate
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.clusters.protocol import Bill
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from tests.baselines.examples import MISPLACED, calibrated_of, entry_of, measurement_of
from tests.baselines.test_learning import make_training
from tests.baselines.test_published_rate import DGX1, P100, make_hardware
from tests.baselines.test_validation import COST

STARTED = datetime(2026, 1, 31, 2, 15, 3, tzinfo=UTC)
OTHERS: list[Any] = [
    None, True, False, -1, 0, 1, 2, 1.5, 0.001, 10**400, 1e300, 1e-300, -1e300, "", "\n", "x", "PASSED", "\x1b[31m", "\ud800",
    "2026-99-99T00:00:00Z", [], {}, [[]], [None], [1], {"x": 1}, {"worker:0": [1.0]},
]  # fmt: skip
CHARACTERS = b'0123456789eE+-."{}[],:\\ntrufalsx \x00\xff\n'


def whole_session(root: Path) -> SessionFolder:
    """Return a session with every kind of check."""
    folder = SessionFolder.create(
        root, cluster="local", command=["pytest", "perf_tests"], versions={"python": "3.11"},
        budget=Budget(false_alarms=0.05, tests=9), session_id="20260131T021503Z-9f3c1a", started=STARTED,
    )  # fmt: skip
    one = _add(folder, measurement_of([50.0, 50.5, 49.5], gpus=1))
    many = _add(folder, measurement_of([98.0, 98.1, 98.2], program="0123456789ab"))
    real = _add(folder, measurement_of([97.0, 97.5, 96.5], data="imagenet", data_dir="/data", model="alexnet"))
    synthetic = _add(folder, measurement_of([99.0, 98.5, 99.5], model="alexnet"))
    accurate = _add(
        folder, measurement_of([10.0, 10.1], accuracies=[0.9, 0.92], evaluate=True, model="mnist", data="mnist", data_dir="/d")
    )
    quick, slow = _add(folder, make_training({10: 0.5, 20: 0.91}, gpus=1)), _add(folder, make_training({10: 0.5, 30: 0.91}))
    famous = _add(folder, measurement_of([1130, 1131], gpus=8, hardware=make_hardware(*[P100] * 8)))
    busy = _add(folder, measurement_of([60.0, 61.0], disturbed=[0, 1]))
    slower = _add(folder, measurement_of([80.0, 80.1, 79.9]))
    elsewhere = _add(folder, measurement_of([60.0, 61.0], placement=MISPLACED, injected_slowdowns={"worker:0": 0.1}))
    entry = entry_of([100.0, 100.5, 99.5])
    calibrated = Entry.from_json({"key": entry.key, **entry.to_json(), "noise": calibrated_of().to_json()})
    judge(folder, "baseline", many, entry=calibrated)
    judge(folder, "efficiency", many, one, threshold=0.7, entry=entry, other_entry=entry_of([50.0, 50.1], gpus=1))
    judge(folder, "overhead", real, synthetic, threshold=0.1)
    judge(folder, "accuracy", accurate, threshold=0.8)
    judge(folder, "learning", slow, quick, threshold=1.5)
    judge(folder, "published", famous, published=DGX1)
    judge(folder, "baseline", busy, entry=entry)
    judge(folder, "baseline", slower, entry=entry)
    judge(folder, "baseline", elsewhere)
    folder.add_cost(Bill.from_json(COST))
    folder.finish(exit_code=1, wall_s=61.5)
    return folder


def _add(folder: SessionFolder, measured: Measurement) -> Record:
    return folder.add("perf_tests/test_a.py::test_throughput", measured)


def judge(
    folder: SessionFolder,
    kind: Kind,
    record: Record,
    other: Record | None = None,
    *,
    threshold: float | None = None,
    entry: Entry | None = None,
    other_entry: Entry | None = None,
    published: PublishedRate | None = None,
) -> None:
    """Record a check of the record, as an experiment does it."""
    terms = ComparisonPolicy(margin=0.05, threshold=threshold)
    folder.add_judgement(
        record.id,
        ask(
            kind,
            terms,
            record.measurement,
            other.measurement if other else None,
            other_id=other.id if other else None,
            entry=entry,
            other_entry=other_entry,
            published=published,
        ),
    )


def contents(folder: SessionFolder) -> dict[str, bytes]:
    """Return the files of the session with numbered ids, so that they are the same in every run."""
    found = {name: (folder.path / name).read_bytes() for name in ("session.json", "measurements.jsonl")}
    for number, record in enumerate(folder.measurements()):
        found["measurements.jsonl"] = found["measurements.jsonl"].replace(record.id.encode(), f"{number:012}".encode())
    return found


def damage_files(whole: Mapping[str, bytes], number: int) -> dict[str, bytes]:
    """Return the files with the `number`-th damage, which is always the same."""
    dice = random.Random(number)
    whole = {**whole, "measurements.jsonl": dice.choice(_cases(whole["measurements.jsonl"]))}
    name = dice.choices(sorted(whole), weights=[4, 1])[0]  # measurements.jsonl, session.json
    kind = dice.choices([_other_bytes, _other_lines, _other_values], weights=[2, 1, 6])[0]
    return {**whole, name: kind(whole[name], dice)}


@cache
def _cases(content: bytes) -> list[bytes]:
    """Return the lines of each judged measurement and of the one that it was compared with; reading all would take longer."""
    lines = {json.loads(line)["id"]: line for line in content.splitlines(keepends=True)}
    checks = [(name, check) for name, line in lines.items() for check in json.loads(line)["checks"]]
    names = [[*([check["other"]] if check["other"] else []), name] for name, check in checks]
    return [b"".join(lines[name] for name in case) for case in names]


def _other_bytes(content: bytes, dice: random.Random) -> bytes:
    """Damage the bytes as disks, editors and transfers do: truncated, overwritten, doubled, filled with zeros."""
    here = dice.randrange(len(content))
    there = min(len(content), here + dice.choice([1, 1, 2, 8, 512]))
    put = dice.choice(
        [b"", bytes([dice.choice(CHARACTERS)]), b"\0" * (there - here), content[here:there] * 2, dice.randbytes(there - here)]
    )
    return content[:here] if dice.random() < 0.2 else content[:here] + put + content[there:]


def _other_lines(content: bytes, dice: random.Random) -> bytes:
    """Damage the lines as merges and other programs do: missing, doubled, reordered, replaced."""
    lines = content.splitlines(keepends=True)
    here = dice.randrange(len(lines))
    what = dice.choice(["remove", "double", "shuffle", "foreign"])
    if what == "remove":
        del lines[here]
    elif what == "double":
        lines.insert(here, lines[here])
    elif what == "shuffle":
        dice.shuffle(lines)
    else:
        lines[here] = json.dumps(dice.choice([*OTHERS, {"schema": 1}, {"schema": 2, "id": "x"}])).encode() + b"\n"
    return b"".join(lines)


def _other_values(content: bytes, dice: random.Random) -> bytes:
    """Change, rename, add or remove one to three values, as people and other versions do."""
    is_lines = not content.startswith(b"{\n")
    documents = [json.loads(line) for line in content.splitlines()] if is_lines else [json.loads(content)]
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        _change(dice.choice(documents), dice)
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def _change(document: Any, dice: random.Random) -> None:
    positions = list(_positions(document))
    if not positions:
        return
    inside, key = dice.choice(positions)
    what = dice.choice(["replace", "replace", "replace", "remove", "move", "insert", "scale"])
    if what == "remove":
        del inside[key]
    elif what == "move":
        other, position = dice.choice(positions)
        inside[key] = json.loads(json.dumps(other[position]))
    elif what == "insert" and isinstance(inside, dict):
        inside[f"{key}s"] = dice.choice(OTHERS)
    elif what == "scale" and isinstance(inside[key], int | float):
        inside[key] = inside[key] * dice.choice([-1, 0, 1000, 1e-6, 1e6])
    else:
        inside[key] = dice.choice(OTHERS)


def _positions(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []:
        yield data, key
        yield from _positions(inner)


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
