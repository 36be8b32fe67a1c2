"""Readings of hosts over nights: from session folders into the history, and a host that becomes slow as an event."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.fingerprint import Hardware
from pytest_dtfperf.datamodel.probes import HostProbe, Reading
from pytest_dtfperf.datamodel.qualification import CapacityResult, HostResult, HostVerdict, Qualification
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.enter import enter_all, remember
from pytest_dtfperf.history.watching import find_slow_hosts, search_changes
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.nightly.notify import HOST, Problem, list_problems
from pytest_dtfperf.records.host_readings import FILE, HostReading, append_host_readings, load_host_readings
from pytest_dtfperf.records.session import SessionFolder
from tests.cli.table import read
from tests.history.sessions import BEGAN, HARDWARE, folder_of
from tests.plugin import zygote

NIGHTS, CHANGED = 24, 16
HOSTS = ("n1", "n2", "n3")
TODAY = BEGAN + timedelta(days=NIGHTS)


def probe_of(per_s: float, threads: int = 1) -> HostProbe:
    return HostProbe(readings={"core.matmul": Reading(per_s=per_s, spread=0.01, repeats=3, how={"threads": threads})})


def night_of(root: Path, night: int, rates: dict[str, float], **hardware: str) -> SessionFolder:
    """Return the session of a night with probes of these hosts at these rates."""
    folder = folder_of(root, night)
    for host, per_s in rates.items():
        append_host_readings(
            folder, HostReading.list_probed(host, Hardware.from_json({**HARDWARE, **hardware}), probe_of(per_s))
        )
    return folder


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> list[SessionFolder]:
    """Nights of three hosts, of which n2 computes 12 % slower from one of them on."""
    root, random = tmp_path_factory.mktemp("results"), np.random.default_rng(5)
    found = []
    for night in range(NIGHTS):
        factors = {host: 0.88 if host == "n2" and night >= CHANGED else 1.0 for host in HOSTS}
        found.append(
            night_of(root, night, {host: 1e9 * f * float(np.exp(random.normal(0, 0.004))) for host, f in factors.items()})
        )
    return found


def address_in(folder: Path) -> Address:
    found = parse_address(None, folder)
    assert found
    return found


@pytest.fixture(scope="module")
def address(nights: list[SessionFolder], tmp_path_factory: pytest.TempPathFactory) -> Address:
    """A history of all nights, which were entered one by one."""
    address = address_in(tmp_path_factory.mktemp("history"))
    for folder in nights:
        remember(folder, address)
    return address


def slow_hosts(address: Address) -> dict[str, str]:
    return Database.open(address).write(lambda connection: find_slow_hosts(connection, "local", TODAY))


def test_a_host_that_becomes_slow_is_an_event(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """The change of one reading of one host is found with its night and size, beside no change of the other hosts."""
    assert main(["history", "changes", f"--history={address}", "--json"]) == 0
    (event,) = read("history changes", capsys.readouterr().out)["changes"]
    (member,) = event["members"]
    assert (member["host"], member["label"], member["cluster"]) == ("n2", "n2: core.matmul", "local")
    assert -0.13 < member["change"] < -0.11
    assert event["first_bad_at"][:10] == "2026-01-17"


def test_the_night_that_confirms_a_slow_host_reports_it(nights: list[SessionFolder], tmp_path: Path) -> None:
    """The summary of exactly one night has the change as new, and it concerns only sessions with readings of the host."""
    address = address_in(tmp_path)
    entries = [remember(folder, address) for folder in nights]
    (new,) = [line for entry in entries for line in entry.new]
    assert new.startswith("since 17 January: -1")
    assert "n2: core.matmul" in new
    watched = Database.open(address).write(search_changes)
    (event,) = watched.events
    assert watched.is_affected(event, nights[-1].id, {"n1", "n2"})
    assert not watched.is_affected(event, nights[-1].id, {"n1", "n3"})


def test_a_session_without_readings_keeps_the_events_of_hosts(nights: list[SessionFolder], tmp_path: Path) -> None:
    """Nights without readings neither lose nor repeat the changes of hosts, and later readings continue their series."""
    address = address_in(tmp_path)
    enter_all(nights[: CHANGED + 3], address)
    Database.open(address).write(search_changes)
    enter_all([folder_of(tmp_path, 50)], address)
    Database.open(address).write(search_changes)
    assert slow_hosts(address) == {}
    late = [night_of(tmp_path, 51 + n, {"n1": 1e9 * (1 + n / 1000), "n2": 0.88e9 * (1 + n / 1000)}) for n in range(8)]
    for folder in late:
        enter_all([folder], address)
        Database.open(address).write(search_changes)
    enter_all([folder_of(tmp_path, 70)], address)
    watched = Database.open(address).write(search_changes)
    (event,) = watched.events
    assert event["members"][0]["host"] == "n2"
    assert event["first_bad_at"][:10] == "2026-01-17"


def test_an_import_finds_the_events_of_nights(nights: list[SessionFolder], address: Address, tmp_path: Path) -> None:
    """Sessions that are entered at once give the same changes of hosts as sessions that are entered night by night."""
    once = address_in(tmp_path)
    enter_all(nights, once)
    for found in (once, address):
        Database.open(found).write(search_changes)
    stored = []
    for found in (once, address):
        with Database.open(found).reading() as connection:
            stored.append([(each["found"], each["first_bad"], len(each["members"])) for each in store.read_events(connection)])
    assert stored[0] == stored[1]
    assert stored[0]


def test_history_hosts_lists_and_draws(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """`history hosts` lists every host with its change, and with a name draws its readings with a mark at the change."""
    assert main(["history", "hosts", f"--history={address}"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.startswith("n")] == ["n1", "n2", "n3"]
    (line,) = [line for line in out.splitlines() if line.startswith("n2")]
    assert "since 17 January 2026: -1" in line
    assert main(["history", "hosts", "n2", f"--history={address}"]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert drawn[0].startswith("n2: core.matmul on cpu-any-2c")
    assert drawn[2] == " " * CHANGED + "^"
    assert "GFLOP/s" in drawn[3]
    assert "24 of 24 nights" in drawn[3]
    assert main(["history", "hosts", "n2", "--last=3", f"--history={address}", "--json"]) == 0
    (host,) = read("history hosts", capsys.readouterr().out)["hosts"]
    (series,) = host["series"]
    assert (host["sessions"], series["unit"], len(series["points"])) == (24, "FLOP/s", 3)


def test_history_hosts_of_an_unknown_host_is_exit_code_1(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """A name without readings is one line and exit code 1."""
    assert main(["history", "hosts", "n9", f"--history={address}"]) == 1
    assert "no readings of n9" in capsys.readouterr().err


def test_simulated_hosts_have_no_readings(tmp_path: Path) -> None:
    """Probes of simulated hosts are not stored."""
    folder = night_of(tmp_path, 0, {"sim-0000": 1e9}, simulated="sim")
    assert load_host_readings(folder) == []


def test_readings_under_other_conditions_are_other_series(tmp_path: Path) -> None:
    """Readings with another number of threads begin a series of their own and are no change."""
    address = address_in(tmp_path)
    for night in range(16):
        folder = folder_of(tmp_path, night)
        probe = probe_of(1e9 * (1 + night / 1e4) if night < 8 else 4e9 * (1 + night / 1e4), threads=1 if night < 8 else 4)
        append_host_readings(folder, HostReading.list_probed("n1", Hardware.from_json(HARDWARE), probe))
        enter_all([folder], address)
    assert not Database.open(address).write(search_changes).events


def test_a_damaged_file_of_readings_is_named(tmp_path: Path) -> None:
    """A line that is no reading is an error with the file and the line, and a torn last line does not count."""
    folder = night_of(tmp_path, 0, {"n1": 1e9})
    path = folder.path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"host": "n2"')
    assert [each.host for each in load_host_readings(folder)] == ["n1"]
    path.write_bytes(whole + b'{"host": "n2"}\n')
    with pytest.raises(SessionFileError, match=rf"{FILE}:2: is no reading of a host"):
        load_host_readings(folder)


def qualification_of(**verdicts: HostVerdict) -> Qualification:
    hosts = {
        host: HostResult(
            verdict=verdict,
            kind="cpu-any-2c",
            capacities={"memory": CapacityResult(verdict=verdict, per_s=1e10, peers_per_s=1.1e10, loss=0.09, readings=9)},
        )
        for host, verdict in verdicts.items()
    }
    return Qualification(cluster="local", hosts=hosts, false_alarms=0.02)


def test_the_last_qualification_decides_which_hosts_are_slow(tmp_path: Path) -> None:
    """A host that a qualification calls slow is a slow host until a later one calls it fit."""
    address = address_in(tmp_path)
    for night, verdict in enumerate((HostVerdict.FIT, HostVerdict.SLOW)):
        folder = folder_of(tmp_path, night)
        append_host_readings(folder, HostReading.list_qualified(qualification_of(n1=HostVerdict.FIT, n2=verdict), {}))
        enter_all([folder], address)
    found = slow_hosts(address)
    assert list(found) == ["n2"]
    assert "memory is slower than that of its peers" in found["n2"]
    folder = folder_of(tmp_path, 3)
    append_host_readings(folder, HostReading.list_qualified(qualification_of(n2=HostVerdict.FIT), {}))
    enter_all([folder], address)
    assert slow_hosts(address) == {}


def test_a_slow_host_is_a_problem_of_the_night(address: Address) -> None:
    """A slow host is one problem of a night, remains while the history cannot be read, and is resolved when it is not slow."""
    slow = slow_hosts(address)
    (problem,) = list_problems("local", 0, "All tests passed.", None, [], slow_hosts=slow)
    assert (problem.kind, problem.name) == (HOST, "n2")
    assert problem.text.startswith("n2: core.matmul since 17 January: -1")
    assert list_problems("local", 0, "All tests passed.", None, [], [problem]) == [problem]
    other = Problem(HOST, "n7", "n7: ...")
    assert list_problems("local", 0, "All tests passed.", None, [], [problem, other], slow) == [problem]
    assert list_problems("local", 0, "All tests passed.", None, [], [problem], {}) == []


def test_prune_removes_readings(nights: list[SessionFolder], tmp_path: Path) -> None:
    """Readings of a removed session are removed with it."""
    address = address_in(tmp_path)
    enter_all(nights[:3], address)
    assert main(["history", "prune", "--keep=1", "--yes", f"--history={address}"]) == 0
    with Database.open(address).reading() as connection:
        assert {row["session"] for row in store.read_host_readings(connection)} == {nights[2].id}


def test_a_history_of_the_first_version_is_upgraded(nights: list[SessionFolder], tmp_path: Path) -> None:
    """A database without the table of readings gets it when it is opened, and keeps its sessions."""
    from sqlalchemy import text

    address = address_in(tmp_path)
    enter_all(nights[:1], address)

    def downgrade(connection: object) -> None:
        connection.execute(text("DROP TABLE host_readings"))  # type: ignore[attr-defined]
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))  # type: ignore[attr-defined]

    Database.open(address).write(downgrade)
    enter_all(nights[1:2], address)
    with Database.open(address).reading() as connection:
        assert len(store.read_sessions(connection)) == 2
        assert {row["session"] for row in store.read_host_readings(connection)} == {nights[1].id}
    assert json.loads((nights[1].path / FILE).read_text().splitlines()[0])["host"] == "n1"


ENTER = """
import sys
from pathlib import Path
from pytest_dtfperf.history.enter import remember
from pytest_dtfperf.history.where import parse_address
from pytest_dtfperf.records.session import SessionFolder

history, *folders = map(Path, sys.argv[1:])
for folder in folders:
    for line in remember(SessionFolder.open(folder), parse_address(None, history)).lines:
        print(line)
"""


def test_two_sessions_enter_their_readings_at_once(tmp_path: Path) -> None:
    """Two processes that enter sessions into one history at the same time lose and repeat no reading, and report nothing."""
    halves = [[night_of(tmp_path, night, {"n1": 1e9 + night}) for night in range(first, 16, 2)] for first in range(2)]
    commands = [["-c", ENTER, str(tmp_path), *(str(folder.path) for folder in half)] for half in halves]
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(lambda command: zygote.python(*command), commands))
    assert [(each.returncode, each.stdout) for each in ended] == [(0, "")] * 2
    with Database.open(address_in(tmp_path)).reading() as connection:
        found = [row["per_s"] for row in store.read_host_readings(connection, "n1")]
    assert sorted(found) == [1e9 + night for night in range(16)]
