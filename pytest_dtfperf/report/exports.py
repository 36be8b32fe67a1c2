"""`<model>_b<batch>.csv`: the scaling table as tfperftest wrote it, with its ideal line in a column beside."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_dtfperf.measurement import scaling_efficiency
from pytest_dtfperf.report.arithmetic import flops_per_sec, share_of_peak
from pytest_dtfperf.report.record import Record, latest_of_each_spec
from pytest_dtfperf.report.session import SessionFolder

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    "gpus", "images_per_sec", "ideal", "efficiency", "num_ps", "variable_update", "data", "runs", "spread", "flops_per_sec",
    "share_of_peak", "spec",
]  # fmt: skip


INSTALL = "pip install 'pytest-dtfperf[report]' brings what is missing."


def write(folder: SessionFolder, records: Iterable[Record]) -> list[str]:
    """Write one file per model and batch size; returns what there is to say about it, which is all if pandas is absent."""
    names = []
    try:
        for (model, batch_size), group in by_model(records).items():
            names.append(f"{model}_b{batch_size}.csv")
            scaling_table(group).to_csv(folder.path / names[-1], index=False, float_format="%.6g", lineterminator="\n")
    except ImportError as exc:
        return [f"No CSV files: {exc}. {INSTALL}"]
    return [f"Written: {', '.join(names)}"] if names else []


def by_model(records: Iterable[Record]) -> dict[tuple[str, int], list[Record]]:
    """The latest valid record of each spec, by model and batch size."""
    ordered = sorted(latest_of_each_spec(records), key=lambda r: (r.spec.model, r.spec.batch_size))
    return {key: list(group) for key, group in groupby(ordered, key=lambda r: (r.spec.model, r.spec.batch_size))}


def best_of_each_count(records: Iterable[Record]) -> dict[tuple[str, int], Record]:
    """(data, devices) -> the fastest configuration: what a user of so many devices would choose."""
    slowest_first = sorted(records, key=lambda r: (r.spec.data, r.spec.gpus, r.images_per_sec))
    return {(record.spec.data, record.spec.gpus): record for record in slowest_first}


def scaling_table(records: Iterable[Record]) -> "pd.DataFrame":
    """The fastest configuration of each device count, per kind of input; `spec` says which it is.

    ideal: devices x the fastest 1-device rate with the same input. efficiency: images_per_sec / ideal. Both are empty
    where no 1-device rate was measured. spread: (largest - smallest) / median of the runs' rates. flops_per_sec and
    share_of_peak are empty where they are not known: arithmetic.py.
    """
    import pandas as pd  # half a second, and not everybody has it: only where a table is made

    best = best_of_each_count(records)
    return pd.DataFrame([_row(record, best) for record in best.values()], columns=COLUMNS)


def _row(record: Record, best: Mapping[tuple[str, int], Record]) -> dict[str, object]:
    spec, one = record.spec, best.get((record.spec.data, 1))
    return {
        "gpus": spec.gpus,
        "images_per_sec": record.images_per_sec,
        "ideal": spec.gpus * one.images_per_sec if one else None,
        "efficiency": scaling_efficiency(record.images_per_sec, spec.gpus, one.images_per_sec) if one else None,
        "num_ps": spec.num_ps,
        "variable_update": spec.variable_update,
        "data": spec.data,
        "runs": len(record.measurement.runs),
        "spread": record.measurement.spread,
        "flops_per_sec": flops_per_sec(record.measurement),
        "share_of_peak": share_of_peak(record.measurement),
        "spec": spec.label,
    }
