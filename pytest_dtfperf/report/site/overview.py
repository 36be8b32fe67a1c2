"""The systems of a history, with the latest rates of the trainings on each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pytest_dtfperf.formats import format_count, minute, rate
from pytest_dtfperf.history.past import Change, make_past
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.report.page import html
from pytest_dtfperf.report.page.view import Standing
from pytest_dtfperf.report.site import files

MAX_ROWS = 400  # on a page, of about a kilobyte each


@dataclass(frozen=True)
class SeriesRow:
    """A series in one line."""

    href: str  # relative to the site's first page
    label: str
    hosts: int
    rate: str
    rate_value: float
    nights: int
    drawing: Markup | None
    direction: Standing | None  # of its last change; None: there is none
    change: str
    measured: str  # time of its last measurement


@dataclass(frozen=True)
class System:
    """A kind of hardware, with some of its series or all."""

    name: str
    summary: str
    rows: Sequence[SeriesRow]
    more: str  # page with all of them; empty if these are all


SLOWER, FASTER = Standing("slower", "fail", 0), Standing("faster", "pass", 1)


def get_direction(change: float) -> Standing:
    return SLOWER if change < 0 else FASTER


def group_by_system(all_series: Iterable[Series]) -> dict[str, list[Series]]:
    """Return the series of each system; the system with the latest measurement comes first."""
    found: dict[str, list[Series]] = defaultdict(list)
    for series in sorted(all_series, key=_get_latest_time, reverse=True):
        found[series.system].append(series)
    return dict(found)


def _get_latest_time(series: Series) -> str:
    started: str = series.points[-1]["started"]
    return started


def make_systems(found: Mapping[str, Sequence[Series]], changes: Mapping[str, Change]) -> list[System]:
    """Return each system for the first page, with as many series as fit: changed ones and the latest first."""
    room = max(1, MAX_ROWS // max(1, len(found)))
    return [
        make_system(name, all_of_it, _select_first(all_of_it, changes)[:room], changes) for name, all_of_it in found.items()
    ]


def _select_first(series: Sequence[Series], changes: Mapping[str, Change]) -> list[Series]:
    """Return series that are still measured before the others, each group by label."""
    latest = max(map(_get_latest_time, series))
    return sorted(series, key=lambda each: (_get_latest_time(each) < latest, each.name not in changes, each.label))


def make_system(name: str, all_of_it: Sequence[Series], shown: Sequence[Series], changes: Mapping[str, Change]) -> System:
    latest = max(map(_get_latest_time, all_of_it))
    message = f"{format_count(len(all_of_it), 'series', '')}, last measured {minute(latest)} UTC"
    if len(shown) < len(all_of_it):
        message += f"; {len(shown)} of them here"
    more = files.make_page_name(files.make_system_page_prefix(name), 1) if len(shown) < len(all_of_it) else ""
    return System(name, message, [make_series_row(each, changes) for each in shown], more)


def make_series_row(series: Series, changes: Mapping[str, Change]) -> SeriesRow:
    last = series.points[-1]
    past = make_past(series, len(series.points) - 1, changes)
    began = next((i for i, (started, _) in enumerate(past.points) if started >= past.began), None) if past.began else None
    found = changes.get(series.name)
    return SeriesRow(
        href=f"{files.make_training_page_name(series.spec_key, last['model'])}#{series.name}",
        label=series.label,
        hosts=series.hosts,
        rate=rate(last["images_per_sec"]),
        rate_value=last["images_per_sec"],
        nights=len(series.points),
        drawing=html.draw_trend(past.points, None, began) if len(past.points) > 1 else None,
        direction=get_direction(found[1]["change"]) if found else None,
        change=past.change,
        measured=minute(last["started"]),
    )
