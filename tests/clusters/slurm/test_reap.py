"""`dtfperf slurm reap` on a real Slurm: it finds the leftovers of dead sessions, and changes nothing else."""

import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.slurm.request import format_job_comment, parse_job_comment
from pytest_dtfperf.node.owner import Owner
from tests.cli.table import read
from tests.clusters.slurm.site import Site
from tests.node.namespaces import in_pid_namespace, why_not
from tests.plugin import zygote

ENDS_S = 120.0
HERE = socket.gethostname()
SESSION = "20260131T021503Z-9f3c1a"


ME = Owner.read_own()
GONE = ME._replace(started=ME.started - 1)  # an earlier process with this process's id
ELSEWHERE = Owner("other-machine", "b007", "4026531836", 17, 4711)


@pytest.mark.parametrize(
    "comment, expected",
    [
        (f"dtfperf session={SESSION} owner={ELSEWHERE.text}", (SESSION, ELSEWHERE)),
        (f"dtfperf session={SESSION} owner=login-1:17:4711", None),
        ("my job", None),
        ("", None),
    ],
)
def test_a_comment_names_session_and_owner(comment: str, expected: tuple[str, Owner] | None) -> None:
    """The comment of a job is read back; another program's comment is ignored."""
    assert parse_job_comment(comment) == expected


def test_comment_of_a_job_is_read_back() -> None:
    """The comment of a job of this process is read back as its session and owner."""
    assert parse_job_comment(format_job_comment(SESSION, ME)) == (SESSION, ME)


@pytest.fixture
def jobs(site: Site) -> Iterator[dict[str, str]]:
    """Return name -> id: jobs of a dead owner, a living one, one elsewhere, and two of other programs."""
    wanted = {
        "dtfperf-gone": format_job_comment(SESSION, GONE),
        "dtfperf-lives": format_job_comment(SESSION, ME),
        "dtfperf-elsewhere": format_job_comment(SESSION, ELSEWHERE),
        "dtfperf-mine": "nothing of the plugin's",
        "mine": format_job_comment(SESSION, GONE),
    }
    submit = ("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--ntasks=1", "--mem=0", "--oversubscribe")
    found = {
        name: site.run(*submit, f"--job-name={name}", f"--comment={comment}", "--wrap=sleep 1000").strip()
        for name, comment in wanted.items()
    }
    yield found
    site.run("scancel", *found.values())


def reap(site: Site, *arguments: str, before: Sequence[str] = ()) -> tuple[int, str]:
    """Return exit code and output; `before` is a command before Python's."""
    argv = ["-m", zygote.COMMANDS, "slurm", "reap", *arguments]
    if not before:
        code, out, err = zygote.run(argv, Path.cwd(), {**site.login_environment, **zygote.SEARCH_PATH}, ENDS_S)
        return code, out + err
    with site.popen(*before, sys.executable, *argv) as process:
        out, err = process.communicate(timeout=ENDS_S)
    return process.returncode, out + err


def row(output: str, job_id: str) -> str:
    """The table's line about a job, without what is only there to align it."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    return next((line for line in lines if line.startswith(f"{job_id} ")), "")


def list_uncancelled(site: Site, jobs: dict[str, str]) -> set[str]:
    """Return the names of the jobs that have not been cancelled."""
    going = site.run("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i").split()
    return {name for name, job_id in jobs.items() if job_id in going}


def test_only_abandoned_jobs_are_cancelled(site: Site, jobs: dict[str, str]) -> None:
    """The job of a dead pytest is cancelled; those of living ones, of other machines and of other programs are kept."""
    code, output = reap(site)
    assert code == 0, output
    assert row(output, jobs["dtfperf-gone"]).endswith(f"process {GONE.pid} on {HERE} is gone cancelled")
    assert row(output, jobs["dtfperf-lives"]).endswith(f"process {os.getpid()} on {HERE} is at work left alone")
    assert row(output, jobs["dtfperf-elsewhere"]).endswith("process 17 on other-machine cannot be seen from here left alone")
    assert row(output, jobs["dtfperf-mine"]) == row(output, jobs["mine"]) == ""
    assert output.splitlines()[-1] == (
        "dtfperf: 1 of 3 jobs cancelled. Of those of other-machine the state is not known here: "
        "run this command there, or add --all if you are sure."
    )
    assert list_uncancelled(site, jobs) == jobs.keys() - {"dtfperf-gone"}


def test_all_cancels_jobs_of_other_machines(site: Site, jobs: dict[str, str]) -> None:
    """The option --all cancels jobs of other machines as well, but none of a running pytest."""
    code, output = reap(site, "--all")
    assert (code, output.splitlines()[-1]) == (0, "dtfperf: 2 of 3 jobs cancelled.")
    assert list_uncancelled(site, jobs) == jobs.keys() - {"dtfperf-gone", "dtfperf-elsewhere"}


def test_a_dry_run_cancels_nothing(site: Site, jobs: dict[str, str]) -> None:
    """A dry run lists jobs without cancelling them."""
    code, output = reap(site, "--dry-run")
    assert code == 0
    assert row(output, jobs["dtfperf-gone"]).endswith("is gone would be cancelled")
    code, output = reap(site, "--dry-run", "--json")
    done = {each["job"]: each["done"] for each in read("slurm reap", output)["jobs"]}
    assert (code, done[jobs["dtfperf-gone"]], done[jobs["dtfperf-lives"]]) == (0, "would be cancelled", "left alone")
    assert list_uncancelled(site, jobs) == jobs.keys()


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "")
def test_jobs_are_kept_from_another_pid_namespace(site: Site, jobs: dict[str, str]) -> None:
    """A job is kept if the command runs in another container of the same machine: its pytest may be at work."""
    code, output = reap(site, before=in_pid_namespace())
    assert code == 0, output
    assert row(output, jobs["dtfperf-lives"]).endswith("cannot be seen from here left alone")
    assert list_uncancelled(site, jobs) == jobs.keys()


def test_empty_queue_is_reported(site: Site) -> None:
    """An empty queue is reported in one line."""
    assert reap(site) == (0, "dtfperf: no job of perf tests is in the queue.\n")


def beside_sruns(site: Site, *arguments: str, before: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the result of `reap` beside sruns of owners that are gone, at work and elsewhere, and the remaining sruns."""
    if reason := why_not():
        pytest.skip(reason)
    argv = [*before, *in_pid_namespace(), sys.executable, "-m", "tests.clusters.slurm.left_sruns", *arguments]
    with site.popen(*argv) as process:
        out, err = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0, err
    ended = json.loads(out)
    return ended, {name: srun["process"] for name, srun in ended["sruns"].items() if srun["is_there"]}


def test_srun_of_a_dead_pytest_is_ended(site: Site) -> None:
    """An srun of a dead session is listed and ended; those of living or unknown sessions are not."""
    ended, left = beside_sruns(site)
    (report_line,) = (line for line in ended["out"].splitlines() if "srun" in line)
    assert report_line == f"dtfperf: 1 srun on this machine (process 4194304 on {HERE} is gone): ended."
    assert left.keys() == {"at work", "elsewhere"}


def test_a_dry_run_ends_no_srun(site: Site) -> None:
    """A dry run lists the srun of a dead session as an object of JSON, and does not end it."""
    ended, left = beside_sruns(site, "--dry-run", "--json")
    assert read("slurm reap", ended["out"])["sruns"] == [
        {"processes": [left["gone"]], "pytest": f"process 4194304 on {HERE} is gone", "done": "would be ended"}
    ]
    assert left.keys() == {"gone", "at work", "elsewhere"}


def test_sruns_are_ended_without_slurm(site: Site) -> None:
    """An srun of a vanished Slurm is ended before the command fails, because it cannot read the jobs."""
    ended, left = beside_sruns(site, before=["env", "REAP_CONF=/gone/slurm.conf"])
    assert (ended["code"], set(left)) == (1, {"at work", "elsewhere"})
    assert ended["out"].endswith(": ended.\n")
    assert "SLURM_CONF names /gone/slurm.conf, which is not there" in ended["err"]
