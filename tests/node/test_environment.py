"""`setup = "uv"` on a host, with a program in uv's place that makes environments of nothing."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.node.bare_host import BareHost

KINDS = {
    "cpu": {"name": "uv-cpu-1", "requirements": "tensorflow-cpu==1"},
    "cuda": {"name": "uv-cuda-1", "requirements": "tensorflow==1"},
}
WANTED: dict[str, Any] = {"uv": {"version": "0.13.8", "requirements": "uv==0.13.8 --hash=sha256:0"}, "kinds": KINDS}
# `uv --version`, `uv venv ... FOLDER`, `uv pip install ... --requirement FILE`, each noted in $HOME/calls.
UV = """#!/bin/sh
for last; do :; done
case $1 in
--version) echo "uv 0.99.0" ;;
venv) echo venv >> "$HOME/calls"; mkdir -p "$last/bin"; printf '#!/bin/sh\\necho made\\n' > "$last/bin/python"
      chmod +x "$last/bin/python"; ln -s python "$last/bin/python3" ;;
pip) cat "$last" >> "$HOME/calls"; echo >> "$HOME/calls"
     [ -e "$HOME/hang" ] && sleep 654321
     [ -e "$HOME/fail" ] && { echo "$(cat "$HOME/fail")" >&2; exit 2; } ;;
esac
exit 0
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path


def host(home: Path) -> BareHost:
    return BareHost(home, PATH=f"{home}/bin:{os.environ['PATH']}")


def list_environments(home: Path) -> list[str]:
    return sorted(each.name for each in (home / ".cache" / "dtfperf").glob("uv-*") if each.is_dir())


def calls(home: Path) -> list[str]:
    file = home / "calls"
    return file.read_text().splitlines() if file.exists() else []


def test_environment_is_made_once(home: Path) -> None:
    """An environment is made of the requirements the first time, with a message, and found afterwards."""
    with host(home) as first:
        given = first.ready_after(environment=WANTED)
    assert [words.get("doing", "ready") for words in given][-2:] == ["installing TensorFlow", "ready"]
    assert calls(home) == ["venv", stated_requirements()]
    assert len(list_environments(home)) == 1
    with host(home) as second:
        assert second.ready_after(environment=WANTED) == [{"at": "ready"}]
    assert len(calls(home)) == 2


def test_programs_use_the_environment(home: Path) -> None:
    """Programs on the host run in the environment's interpreter."""
    with host(home) as ready:
        ready.wait_until_ready(environment=WANTED)
        ready.run("python3")
        assert ready.line() == "made"


def test_processors_of_another_kind(home: Path) -> None:
    """Machines of two kinds of processors that share a home have an environment each, and a uv that was fetched."""
    (home / "pip").mkdir()
    (home / "pip" / "__main__.py").write_text(PIP)
    as_another = ["setarch", "linux32"]
    another = subprocess.run([*as_another, "uname", "-m"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    for through in ([], as_another):
        with BareHost(home, *through, PATH="/usr/bin:/bin", PYTHONPATH=str(home)) as each:
            assert each.ready_after(environment=WANTED)[-1] == {"at": "ready"}
    assert sorted(each.rpartition("-")[2] for each in list_environments(home)) == sorted([os.uname().machine, another] * 2)


def test_two_at_once(home: Path) -> None:
    """One of two simultaneous requests makes the environment, and the other one waits."""
    with host(home) as one, host(home) as other:
        assert one.ready_after(environment=WANTED)[-1] == other.ready_after(environment=WANTED)[-1] == {"at": "ready"}
    assert calls(home).count("venv") == 1


@pytest.mark.parametrize(
    "why, hint", [("no route to the index", "install TensorFlow yourself"), ("No space left on device", "make room in")]
)
def test_failed_environment_is_reported(home: Path, why: str, hint: str) -> None:
    """A failure is reported with advice, and leaves no partial environment."""
    (home / "fail").write_text(why)
    with host(home) as failing:
        failed = failing.ready_after(environment=WANTED)[-1]
        assert failed["failed"] == "environment"
        assert failed["why"] == "`uv pip ...` failed"
        assert failed["hint"].startswith(hint)
    assert list_environments(home) == []


def test_output_with_invalid_encoding(home: Path) -> None:
    """Output of uv with an invalid encoding is passed on and searched."""
    (home / "fail").write_bytes(b"/home/j\xf6rg: No space left on device")
    with host(home) as failing:
        failed = failing.ready_after(environment=WANTED)[-1]
    assert failed["why"] == "`uv pip ...` failed"
    assert failed["hint"].startswith("make room in")


@pytest.mark.parametrize("what", ["a folder", "of another machine"])
def test_uv_that_is_none_is_passed_over(home: Path, what: str) -> None:
    """A folder of that name, or a uv for other processors in a shared home, is no uv: the next in PATH is taken."""
    first = home / "first" / "uv"
    first.parent.mkdir()
    if what == "a folder":
        first.mkdir()
    else:
        first.write_bytes(b"\x7fELF of another machine")
        first.chmod(0o755)
    with BareHost(home, PATH=f"{first.parent}:{home}/bin:{os.environ['PATH']}") as ready:
        assert ready.ready_after(environment=WANTED)[-1] == {"at": "ready"}


def test_interrupted(home: Path) -> None:
    """A controller that goes away in between leaves no process; the next one makes it anew, and removes the half."""
    (home / "hang").touch()
    with host(home) as first:
        first.wait_until_ready()  # so that it has the bundle
    with host(home) as interrupted:
        interrupted.header(environment=WANTED)
        while interrupted.next() != {"at": "environment", "doing": "installing TensorFlow"}:
            pass
        wait_until("it hangs", lambda: len(calls(home)) == 2)
        below = [each.pid for each in processes.list_descendants(interrupted.process.pid)]
        interrupted.hang_up()
        interrupted.wait_for_end()
        assert not set(below) & {each.pid for each in processes.iterate_processes()}
    assert len(list_environments(home)) == 1
    (home / "hang").unlink()
    with host(home) as next_one:
        assert next_one.ready_after(environment=WANTED)[-1] == {"at": "ready"}
    assert len(list_environments(home)) == 1


# `pip install ... --target FOLDER ... --requirement FILE`, noted like uv's calls: what it installs is the uv from above.
PIP = """
import pathlib, shutil, sys
words = sys.argv[1:]
target, listed = (pathlib.Path(words[words.index(key) + 1]) for key in ("--target", "--requirement"))
home = pathlib.Path.home()
(home / "calls").open("a").write(f"pip {'--require-hashes' in words} {listed.read_text()}\\n")
(target / "bin").mkdir(parents=True)
shutil.copy(home / "bin" / "uv", target / "bin" / "uv")
"""


def test_uv_is_fetched_by_its_hashes(home: Path) -> None:
    """The requested uv is fetched by pip with its hashes if the host has none."""
    (home / "pip").mkdir()
    (home / "pip" / "__main__.py").write_text(PIP)
    with BareHost(home, PATH="/usr/bin:/bin", PYTHONPATH=str(home)) as first:
        given = first.ready_after(environment=WANTED)
    assert [words.get("doing", "ready") for words in given][-4:] == [
        "fetching uv 0.13.8", "making an environment", "installing TensorFlow", "ready",
    ]  # fmt: skip
    assert calls(home) == [f"pip True {WANTED['uv']['requirements']}", "venv", stated_requirements()]
    assert not list((home / ".cache" / "dtfperf").glob("uv-0*.txt"))


def stated_requirements() -> str:
    kind = "cuda" if os.path.exists("/proc/driver/nvidia/version") else "cpu"
    return KINDS[kind]["requirements"]
