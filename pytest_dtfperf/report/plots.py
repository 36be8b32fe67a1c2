"""`figures/<model>_b<batch>.svg`: one scaling figure per model and batch size, where something was measured that scales."""

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.exports import INSTALL
from pytest_dtfperf.report.figures.groups import Measured, groups_of
from pytest_dtfperf.report.results import Results


def write(folder: SessionFolder, results: Results) -> list[str]:
    """Draw into a session folder; returns what there is to say about it, which is all if matplotlib is absent."""
    measured = [Measured(record, folder.session) for record in results.records]
    groups = [group for group in groups_of(measured) if group.scales]
    if not groups:
        return []
    try:
        from pytest_dtfperf.report.figures.scaling import figure_of
        from pytest_dtfperf.report.figures.style import svg
    except ImportError as exc:
        return [f"No figures: {exc}. {INSTALL}"]
    files = {f"figures/{group.name}.svg": svg(figure_of(group, results.published)) for group in groups}
    names = [name for name, content in files.items() if folder.write(name, content)]
    return [f"Drawn: {', '.join(names)}"] if names else []
