"""Changes over time, the latest first. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.formats import change, counted, minute
from pytest_dtfperf.history import words
from pytest_dtfperf.history.events import size_of
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.report.page.view import Standing
from pytest_dtfperf.report.site import names
from pytest_dtfperf.report.site.overview import get_direction

MAX_MEMBERS = 50  # of an event
ON_A_PAGE = 50  # events
WITHDRAWN = Standing("withdrawn", "none", 9)


@dataclass(frozen=True)
class EventMember:
    """A series that changed."""

    href: str  # from the site's first page; nothing: its training is in the history no more
    label: str
    system: str
    change: str
    interval: str


@dataclass(frozen=True)
class SessionLink:
    """A session that an event names."""

    name: str
    href: str  # nothing: it is in the history no more
    started: str


@dataclass(frozen=True)
class EventView:
    """A change of one series or many."""

    anchor: str
    direction: Standing
    words: str
    kind: str
    last_good: SessionLink
    first_bad: SessionLink
    confirmed: SessionLink
    differences: Sequence[str]
    members: Sequence[EventMember]
    left_out: str


def make_event_view(event: Row, pages: Mapping[str, str], sessions: Collection[str]) -> EventView:
    """`pages`: by series, where it is shown; `sessions`: ids of those that have a page."""
    is_withdrawn = event["state"] != "confirmed"
    left_out = len(event["members"]) - MAX_MEMBERS
    return EventView(
        anchor=make_event_anchor(event),
        direction=WITHDRAWN if is_withdrawn else get_direction(size_of(event)[1]),
        words=words.line_of(event),
        kind=event["kind"] + (": no change after all, the rate came back" if is_withdrawn else ""),
        last_good=_make_session_link(event["last_good"], event["last_good_at"], sessions),
        first_bad=_make_session_link(event["first_bad"], event["first_bad_at"], sessions),
        confirmed=_make_session_link(event["found"], event["found_at"], sessions),
        differences=event["differences"],
        members=[_make_member(member, pages) for member in event["members"][:MAX_MEMBERS]],
        left_out=f"{counted(left_out, 'more series', '')}" if left_out > 0 else "",
    )


def make_event_anchor(event: Row) -> str:
    """Its number, by which it is linked to on a page. Numbers are those of `dtfperf history changes`."""
    return f"change-{event['id']}"


def _make_member(member: Row, pages: Mapping[str, str]) -> EventMember:
    return EventMember(
        href=pages.get(member["series"], ""),
        label=member["label"],
        system=member["system"],
        change=change(member["change"]),
        interval=f"{change(member['low'])} to {change(member['high'])}",
    )


def _make_session_link(name: str, started: str, sessions: Collection[str]) -> SessionLink:
    return SessionLink(name, names.make_session_page_name(name) if name in sessions else "", minute(started))
