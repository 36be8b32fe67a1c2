"""`figures/<model>_b<batch>.svg`: one scaling figure per model and batch size, where something was measured that scales."""

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.exports import INSTALL
from pytest_dtfperf.report.figures.groups import SessionRecord, group_by_figure
from pytest_dtfperf.report.results import SessionResults


def write_figures(folder: SessionFolder, results: SessionResults) -> list[str]:
    """Draw into a session folder; returns what there is to say about it, which is all if matplotlib is absent."""
    measured = [SessionRecord(record, folder.session) for record in results.records]
    groups = [group for group in group_by_figure(measured) if group.scales]
    if not groups:
        return []
    try:
        from pytest_dtfperf.report.figures.scaling import draw_group_scaling
        from pytest_dtfperf.report.figures.style import convert_to_svg
    except ImportError as exc:
        return [f"No figures: {exc}. {INSTALL}"]
    files = {f"figures/{group.name}.svg": convert_to_svg(draw_group_scaling(group, results.published)) for group in groups}
    names = [name for name, content in files.items() if folder.write(name, content)]
    return [f"Drawn: {', '.join(names)}"] if names else []
