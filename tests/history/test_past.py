"""What a session's page shows of earlier sessions: comparable nights, and since when rates are others."""

from datetime import timedelta
from pathlib import Path

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.history import events
from pytest_dtfperf.history.enter import remember
from pytest_dtfperf.history.past import MOST, Past, find_last_changes, make_pasts, map_nights
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.history.where import parse_address
from tests.history.sessions import BEGAN, HARDWARE, folder_of


def point(night: int, rate: float = 100.0, **changes: object) -> Row:
    """A row of a measurement as `store.read_measurements` gives it."""
    row = {"session": f"s{night}", "id": f"m{night}", "spec_key": "k", "hosts": 1, "fingerprint": "f"}
    return row | {"started": f"2026-03-{night:02}T02:15:00+00:00", "images_per_sec": rate} | changes


def event(name: str, night: int, state: str = "confirmed") -> Row:
    member = {"series": name, "label": "a", "kind": "step", "change": -0.021, "low": -0.026, "high": -0.016}
    row = {"kind": "step", "state": state, "members": [member], "differences": ["kernel 1 -> 2"]}
    return row | {"first_bad_at": point(night)["started"]}


def series(*points: Row) -> Series:
    return Series("a", "system", "k", 1, list(points))


def pasts(session: str, found: Series, events: list[Row], *rows: Row) -> dict[str, Past]:
    return make_pasts(map_nights([found])[session], find_last_changes(events), rows)


def test_the_past_ends_with_its_session() -> None:
    """A page made again later shows neither the nights that came since nor a change that began after it."""
    found = series(*(point(night) for night in range(1, 10)))
    events = [event(found.name, 3), event(found.name, 7)]
    past = pasts("s5", found, events, point(5))["m5"]
    assert [started[8:10] for started, _ in past.points] == ["01", "02", "03", "04", "05"]
    assert (past.began, past.change) == ("", "")  # the last change is the later one, which is none of this past
    later = pasts("s8", found, events, point(8))["m8"]
    assert later.change == "since 7 March 2026: -2.1 % (-2.6 % to -1.6 %); also changed: kernel 1 -> 2"
    assert later.began == point(7)["started"]


def test_withdrawn_change_is_not_shown() -> None:
    """An event with a rate that came back is not shown as the last change."""
    found = series(point(1), point(2))
    assert pasts("s2", found, [event(found.name, 2, "reverted")], point(2))["m2"].change == ""


def test_measured_twice_in_a_session() -> None:
    """Two tests that measured the same training have the same past, which ends with the rate of each."""
    found = series(point(1), point(2, 90.0, id="second"))
    both = pasts("s2", found, [], point(2, 80.0, id="first"), point(2, 90.0, id="second"))
    assert {name: [rate for _, rate in past.points] for name, past in both.items()} == {
        "first": [100.0, 80.0],
        "second": [100.0, 90.0],
    }


def test_one_label_is_not_one_series(tmp_path: Path) -> None:
    """The same training on other hardware has another past, and a session on the former goes on with its."""
    address = parse_address(None, tmp_path)
    assert address
    other = {**HARDWARE, "cores": 64}
    nights = [(1, HARDWARE, 100.0), (2, other, 900.0), (3, HARDWARE, 101.0), (4, other, 901.0)]
    found = [
        remember(folder_of(tmp_path, night, {1: [rate, rate]}, hardware=hardware), address) for night, hardware, rate in nights
    ]
    rates = [[rate for _, rate in past.points] for each in found for past in each.pasts.values()]
    assert rates == [[100.0], [900.0], [100.0, 101.0], [900.0, 901.0]]


def test_a_disturbed_measurement_has_the_past_of_its_series(tmp_path: Path) -> None:
    """What something disturbed is no night of its series, but has the nights before it, on hosts like its own, and a mark."""
    address = parse_address(None, tmp_path)
    assert address
    nights = [(1, HARDWARE, "6.1", 100.0), (2, {**HARDWARE, "cores": 64}, "6.1", 900.0), (3, HARDWARE, "6.1", 101.0)]
    for night, hardware, kernel, rate in nights:
        remember(folder_of(tmp_path, night, {1: [rate, rate]}, hardware=hardware, software={"kernel": kernel}), address)
    tainted = folder_of(tmp_path, 4, {1: [60.0, 60.0], 2: [70.0, 70.0]}, software={"kernel": "6.2"}, verdict=Verdict.TAINTED)
    (past,) = remember(tainted, address).pasts.values()
    assert past.is_disturbed
    assert [(started[8:10], rate) for started, rate in past.points] == [
        (f"{(BEGAN + timedelta(days=night)):%d}", rate) for night, rate in ((1, 100.0), (3, 101.0), (4, 60.0))
    ]
    (after,) = remember(folder_of(tmp_path, 5, {1: [102.0, 102.0]}), address).pasts.values()
    assert [rate for _, rate in after.points] == [100.0, 101.0, 102.0]
    assert not after.is_disturbed


def test_invalid_measurement_has_no_past(tmp_path: Path) -> None:
    """An INVALID measurement has no past."""
    address = parse_address(None, tmp_path)
    assert address
    remember(folder_of(tmp_path, 1), address)
    assert remember(folder_of(tmp_path, 2, verdict=Verdict.INVALID), address).pasts == {}


def test_without_a_series_there_is_no_past() -> None:
    """A measurement that no series has got is given none."""
    assert pasts("s1", series(point(1)), []) == {}
    assert pasts("s1", series(point(1)), [], point(1, fingerprint="another")) == {}


def test_past_has_a_limited_number_of_nights() -> None:
    """A past has the last nights, up to a limit."""
    nights = [point(1, session=f"s{number}", started=f"{2000 + number}-01-01T00:00:00+00:00") for number in range(MOST + 5)]
    (past,) = pasts(f"s{MOST + 3}", series(*nights), [], nights[MOST + 3]).values()
    assert [started[:4] for started, _ in past.points] == [str(2000 + number) for number in range(4, MOST + 4)]


def test_formatted_day_has_its_year() -> None:
    """A day without a reference date is formatted with its year."""
    assert events.format_day("2026-03-12T02:15:00+00:00") == "12 March 2026"
