"""`figures/<model>_b<batch>.svg`: one scaling figure per model and batch size."""

from collections.abc import Iterable, Sequence

from pytest_dtfperf.report.exports import INSTALL, by_model
from pytest_dtfperf.report.published import Published
from pytest_dtfperf.report.record import Record
from pytest_dtfperf.report.series import published_series
from pytest_dtfperf.report.session import SessionFolder

LEAST_AXIS = 8  # devices: published systems are drawn so far at least, for most of them are of that size


def write(folder: SessionFolder, records: Iterable[Record], published: Sequence[Published] = ()) -> list[str]:
    """Draw into a session folder; returns what there is to say about it, which is all if matplotlib is absent."""
    groups = by_model(records)
    if not groups:
        return []
    try:
        from pytest_dtfperf.report.figure import scaling_figure, write_svg
    except ImportError as exc:
        return [f"No figures: {exc}. {INSTALL}"]
    names = []
    for (model, batch_size), group in groups.items():
        most_gpus = max(LEAST_AXIS, *(record.spec.gpus for record in group))
        names.append(f"figures/{model}_b{batch_size}.svg")
        write_svg(scaling_figure(group, published_series(published, model, batch_size, most_gpus)), folder.path / names[-1])
    return [f"Drawn: {', '.join(names)}"]
