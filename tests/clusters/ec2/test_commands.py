"""`dtfperf ec2` at the pretend Amazon: its output, the runs that it ends, and those that it keeps."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.clusters.ec2 import instance_types
from pytest_dtfperf.clusters.ec2.contact import make_keys
from pytest_dtfperf.clusters.ec2.launcher import Launch
from pytest_dtfperf.clusters.ec2.ledger import Ledger, get_state_folder
from pytest_dtfperf.node.owner import Owner
from tests.cli.table import read
from tests.clusters.ec2 import runs
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.plugin import zygote

ME = Owner.read_own()
GONE = ME._replace(started=ME.started - 1)  # an earlier process with this process's id
ELSEWHERE = Owner("other-machine", "b007", "4026531836", 17, 4711)

CLUSTER = """
[test]
backend = "ec2"
region = "us-east-1"
instance_type = "g4dn.xlarge"
count = 2
max_usd = 50
max_hours = 3
subnets = {subnets}
caller_cidr = "{caller}/32"
"""


@dataclass(frozen=True)
class Ended:
    """The result of one call."""

    code: int
    out: str
    err: str


Dtfperf = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder without a cluster file, and without agreement to costs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DTFPERF_EC2_YES", raising=False)


@pytest.fixture
def dtfperf(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> Dtfperf:
    """`dtfperf ec2 ...` in this process."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(["ec2", *arguments])
        return Ended(code, *capsys.readouterr())

    return call


def _launch(cloud: Cloud, run: str, owner: Owner = ME, *, folder: Path | None = None, **other: Any) -> list[str]:
    """A run with instances, as a session leaves it. Their ids."""
    account = runs.account(cloud)
    plan = runs.make_new_plan(cloud, run=run, owner=owner, **other)
    ledger = Ledger.from_plan(plan, folder or get_state_folder())
    ledger.begin(plan)
    make_keys(ledger.folder, plan.name)
    found = Launch(account, plan, ledger, instance_types.get_offer(account, plan.instance_type), lambda words: None)()
    if plan.keep:
        ledger.note("ready", instances=[each.id for each in found])
        ledger.note_kept()
    return [each.id for each in found]


def _write_cluster(cloud: Cloud, *lines: str) -> None:
    text = CLUSTER.format(subnets=list(cloud.subnets.values()), caller=cloud.caller)
    Path("clusters.toml").write_text(text + "\n".join(lines))


def _line(text: str, *words: str) -> str:
    """The only line with all of these."""
    (found,) = [line for line in text.splitlines() if all(word in line for word in words)]
    return found.rstrip()


def _sum(output: Ended) -> float:
    """Return the sum in the last line, in dollars."""
    found = re.fullmatch(r"dtfperf: \$([\d.]+) so far, without volumes and traffic\.", output.out.splitlines()[-1])
    assert found
    return float(found[1])


def test_status_of_an_empty_account(dtfperf: Dtfperf) -> None:
    """An empty account is reported in one line."""
    assert dtfperf("status") == Ended(0, "dtfperf: no instance of perf tests runs.\n", "")


def test_status(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """Each instance has a line with all of its data, and the prices with their sources and the sum follow."""
    mine = _launch(cloud, "a-lives")
    kept = _launch(cloud, "b-kept", GONE, keep=True, count=1)

    output = dtfperf("status")

    assert (output.code, output.err) == (0, "")
    for number, instance_id in enumerate(mine):
        line = _line(output.out, instance_id)
        assert re.match(rf"{number} +a-lives +test +{instance_id} +g4dn.xlarge +us-east-1a +running +\d+\.\d+\.\d+\.\d+", line)
        assert re.search(r" [345]\d min +\$0\.\d+ +process \d+ on \S+ is at work", line)
    assert "kept for the next session" in _line(output.out, kept[0])
    assert re.fullmatch(
        r"dtfperf: g4dn\.xlarge: \$0\.526/h \(AWS price list, \d{4}-\d\d-\d\d\)", _line(output.out, "price list")
    )
    assert 3 * 0.0088 - 0.001 <= _sum(output) < 1.5  # a minute of each at least; how long this takes is the machine's affair


def test_status_shows_instances_of_other_machines(cloud: Cloud, dtfperf: Dtfperf, tmp_path: Path) -> None:
    """Instances of another machine are shown by their tags, with an unknown state of their pytest."""
    (theirs,) = _launch(cloud, "theirs", ELSEWHERE, folder=tmp_path / "elsewhere", count=1)

    line = _line(dtfperf("status", "--region=us-east-1").out, theirs)

    assert "theirs" in line
    assert "process 17 on other-machine cannot be seen from here" in line


@pytest.mark.campaign
@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda text: "", ""),
        (
            lambda text: "{}\n\n",
            r"dtfperf: \S+/a\.jsonl cannot be read\. .* found by its tags, in us-east-1; --region=NAME selects another region",
        ),
        (lambda text: text.replace('"nonce"', '"n0nce"'), "cannot be read"),
        (lambda text: text + '{"event": "closed", "at": 1}\n', ""),
    ],
    ids=["empty", "foreign line", "plan without a key", "closed"],
)
@pytest.mark.parametrize("end", [["reap", "--all"], ["down", "a", "--all"]], ids=" ".join)
def test_instances_are_found_without_a_valid_ledger(
    cloud: Cloud, dtfperf: Dtfperf, damage: Callable[[str], str], words: str, end: list[str]
) -> None:
    """Instances with an empty, damaged or closed ledger are shown, and can be ended."""
    (only,) = _launch(cloud, "a", ELSEWHERE, count=1)
    ledger = get_state_folder() / "a.jsonl"
    ledger.write_text(damage(ledger.read_text()))

    output = dtfperf("status")
    assert only in output.out
    assert bool(words) == bool(output.err)
    assert re.search(words, output.err)

    assert dtfperf(*end).code == 0
    assert cloud.list_resources() == NOTHING


def test_instances_of_a_closed_run_are_ended(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """Instances of a run with a closed ledger are ended by the next session without an option."""
    _launch(cloud, "a", count=1)
    Ledger(get_state_folder() / "a.jsonl").close()
    assert "its ledger is closed" in dtfperf("status").out
    assert dtfperf("reap").code == 0
    assert cloud.list_resources() == NOTHING


def test_instance_without_a_run(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """An instance with our tag and without a run is shown, and is ended with --all."""
    (only,) = _launch(cloud, "a", ELSEWHERE, count=1)
    for instance in cloud.world.instances():
        instance.ec2_backend.delete_tags([instance.id], {"dtfperf:run": None})
    (get_state_folder() / "a.jsonl").unlink()
    assert only in dtfperf("status").out
    assert cloud.list_resources().instances == (only,)
    assert dtfperf("reap", "--all").code == 0
    assert cloud.list_resources().instances == ()


def test_instances_without_a_run_are_separate(cloud: Cloud, dtfperf: Dtfperf, tmp_path: Path) -> None:
    """Instances without a run are separate: each has a name and its own end."""
    (over,) = _launch(cloud, "a", ELSEWHERE, folder=tmp_path / "one", count=1, expires=int(time.time()) - 60)
    (theirs,) = _launch(cloud, "b", ELSEWHERE, folder=tmp_path / "two", count=1)
    (mine,) = _launch(cloud, "c", folder=tmp_path / "three", count=1)
    for instance in cloud.world.instances():
        instance.ec2_backend.delete_tags([instance.id], {"dtfperf:run": None})

    reaped = dtfperf("reap")
    assert [_line(reaped.out, each).split()[-1] for each in (over, theirs, mine)] == ["ended", "alone", "alone"]
    assert reaped.out.splitlines()[-1].startswith("dtfperf: 1 of 3 runs ended. ")
    assert set(cloud.list_resources().instances) == {theirs, mine}

    assert f"run {theirs} may be in use" in dtfperf("down", theirs).err
    assert {each["run"]: each["done"] for each in read("ec2 down", dtfperf("down", theirs, "--all", "--json").out)["runs"]} == {
        theirs: "ended",
        mine: "left alone",
    }
    assert cloud.list_resources().instances == (mine,)


def test_ssh_to_a_run_with_a_damaged_ledger(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """A login to a run with a damaged ledger is refused with this reason."""
    (only,) = _launch(cloud, "a", count=1)
    (get_state_folder() / "a.jsonl").write_text("")
    assert "run a: its ledger here cannot be read, so the login of instance" in dtfperf("ssh", only).err


def test_status_uses_the_price_of_the_cluster_file(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The price in clusters.toml is used for the sum, and is shown as its source."""
    _write_cluster(cloud, "usd_per_hour = 60")
    _launch(cloud, "a", count=1)

    output = dtfperf("status", "--cluster=test")

    assert "$60/h (usd_per_hour of the cluster file" in output.out
    assert 1.0 <= _sum(output) < 60.0  # of the first minute, or of as many as have passed


def test_status_without_a_price(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """Instances with an unknown price are shown, and the sum is marked as incomplete."""
    cloud.faults.error("GetProducts", "AccessDeniedException", times=100)
    (only,) = _launch(cloud, "a", count=1)

    output = dtfperf("status")

    assert output.code == 0
    assert " ? " in _line(output.out, only)
    assert output.out.splitlines()[-1] == "dtfperf: $0.00 so far, without volumes and traffic, and instances of unknown price."


def test_status_of_one_cluster(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The option --cluster limits the status to that cluster's instances."""
    _write_cluster(cloud)
    (one,) = _launch(cloud, "a", count=1)
    (other,) = _launch(cloud, "b", count=1, cluster="other")

    output = dtfperf("status", "--cluster=test")

    assert one in output.out
    assert other not in output.out


def test_status_includes_regions_of_open_ledgers(cloud: Cloud, dtfperf: Dtfperf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances in other regions are found by their ledgers; without a ledger, the region must be given."""
    (one,) = _launch(cloud, "a", count=1)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert one in dtfperf("status").out

    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert one in dtfperf("status").out
    assert dtfperf("down", "--all").code == 0
    assert dtfperf("status").out == "dtfperf: no instance of perf tests runs.\n"

    (get_state_folder() / "a.jsonl").unlink()
    output = dtfperf("status")
    assert output.code == 2
    assert "has no region" in output.err


def test_refused_region_hides_no_other(cloud: Cloud, dtfperf: Dtfperf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that refuses calls is reported, and instances in others are shown and ended."""
    (one,) = _launch(cloud, "a", GONE, count=1)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "ap-east-1")  # which is asked first
    for command in ("status", "reap"):
        cloud.faults.error("DescribeInstances", "UnauthorizedOperation")
        output = dtfperf(command)
        assert output.code == 1
        assert re.search(r"^dtfperf: region ap-east-1: .* may not call ec2:DescribeInstances", output.err)
        assert one in output.out or "1 of 1 run ended" in output.out
    assert cloud.list_resources() == NOTHING


def test_down(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The command ends kept and abandoned runs, and keeps runs of living sessions."""
    lives = _launch(cloud, "a-lives", count=1)
    _launch(cloud, "b-kept", GONE, keep=True)

    output = dtfperf("down")

    assert (output.code, output.err) == (0, "")
    assert _line(output.out, "b-kept").endswith("ended")
    assert _line(output.out, "a-lives").endswith("left alone")
    assert output.out.splitlines()[-1] == "dtfperf: 1 of 2 runs ended."
    assert cloud.list_resources().instances == tuple(lives)
    assert dtfperf("down", "--all").code == 0
    assert cloud.list_resources() == NOTHING


def test_down_of_one_run(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """A named run is ended alone; one in use needs --all; an unknown one is an error."""
    (busy,) = _launch(cloud, "busy", count=1)
    (other,) = _launch(cloud, "other", GONE, count=1)

    refused = dtfperf("down", "busy")
    assert refused.code == 2
    assert re.search(r"run busy is in use \(process \d+ on .* is at work\): end its pytest, or add --all", refused.err)
    assert set(cloud.list_resources().instances) == {busy, other}

    assert dtfperf("down", "busy", "--all").code == 0
    assert cloud.list_resources().instances == (other,)

    unknown = dtfperf("down", "busy")
    assert unknown.code == 1
    assert unknown.err == "dtfperf: there is no run busy. There are: other\n"


def test_down_with_an_unproven_end(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """A refused end has exit code 1, and the commands to type are on stderr."""
    (only,) = _launch(cloud, "a", GONE, count=1)
    cloud.faults.error("TerminateInstances", "UnauthorizedOperation", "You are not authorized.", times=100)

    output = dtfperf("down")

    assert output.code == 1
    assert _line(output.out, "NOT ENDED").startswith("a ")
    assert "INSTANCES MAY STILL RUN AND COST MONEY" in output.err
    assert f"aws ec2 terminate-instances --instance-ids {only} --region us-east-1" in output.err


@pytest.mark.parametrize("command", ["down", "reap"])
def test_empty_account_needs_no_end(dtfperf: Dtfperf, command: str) -> None:
    """An empty account is reported in one line, with exit code 0."""
    assert dtfperf(command) == Ended(0, "dtfperf: no run of perf tests is left.\n", "")


def test_reap(cloud: Cloud, dtfperf: Dtfperf, tmp_path: Path) -> None:
    """Runs of dead sessions are ended; living, kept and foreign ones stay and are reported."""
    lives = _launch(cloud, "lives", count=1)
    gone = _launch(cloud, "gone", GONE, count=1)
    kept = _launch(cloud, "kept", GONE, keep=True, count=1)
    theirs = _launch(cloud, "theirs", ELSEWHERE, folder=tmp_path / "elsewhere", count=1)

    dry = dtfperf("reap", "--dry-run")
    assert dry.code == 0
    assert _line(dry.out, "gone").endswith("would be ended")
    assert set(cloud.list_resources().instances) == {*lives, *gone, *kept, *theirs}

    output = dtfperf("reap")
    assert (output.code, output.err) == (0, "")
    assert output.out.splitlines()[-1] == (
        "dtfperf: 1 of 4 runs ended. "
        "Of those of other-machine the state is not known here: run this command there, or add --all if you are sure."
    )
    assert set(cloud.list_resources().instances) == {*lives, *kept, *theirs}

    assert dtfperf("reap", "--all").code == 0
    assert set(cloud.list_resources().instances) == {*lives, *kept}


def test_json(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The option --json prints the numbers of the tables of status, reap, down and cost."""
    mine, gone = _launch(cloud, "lives", count=1), _launch(cloud, "gone", GONE, count=1)
    status = read("ec2 status", dtfperf("status", "--json").out)
    assert {each["instance"] for each in status["instances"]} == {*mine, *gone}
    assert all(each["usd_per_hour"] == 0.526 and 0 < each["ends_in_s"] < 3600 for each in status["instances"])
    assert status["usd_so_far"] == pytest.approx(sum(each["usd_so_far"] for each in status["instances"]))

    reaped = read("ec2 reap", dtfperf("reap", "--json").out)
    assert {each["run"]: each["done"] for each in reaped["runs"]} == {"gone": "ended", "lives": "left alone"}
    left = read("ec2 down", dtfperf("down", "--json").out)
    assert {each["run"]: each["done"] for each in left["runs"]} == {"lives": "left alone"}
    assert reaped["problems"] == left["problems"] == []

    _write_cluster(cloud)
    cost = read("ec2 cost", dtfperf("cost", "--cluster=test", "--json").out)
    assert (cost["count"], cost["usd_per_hour"], cost["max_hours"], cost["max_usd"]) == (2, 0.526, 3, 50)
    assert cost["worst_usd"] == pytest.approx(2 * 0.526 * 3)


def test_cost(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The command shows the type, the highest costs of the cluster with their source, and the quota."""
    _write_cluster(cloud)
    code = cloud.limit("g4dn.xlarge", 8.0)

    output = dtfperf("cost", "--cluster=test")

    assert (output.code, output.err) == (0, "")
    lines = output.out.splitlines()
    assert lines[0] == "g4dn.xlarge (1 x T4, 4 vCPUs, 5 Gbit/s)"
    assert lines[1] == "The network bursts to 25 Gbit/s while credits last: how fast depends on what ran before."
    assert re.fullmatch(
        r"2 x g4dn\.xlarge on demand \(AWS account 123456789012, us-east-1 at http://\S+\): "
        r"\$0\.526/h \(AWS price list, \S+\) each x 3 h = at most \$3\.16, without volumes and traffic",
        lines[2],
    )
    assert lines[3] == "max_usd = 50 in clusters.toml"
    assert lines[4] == f"8 vCPUs of 8 in quota 'Running On-Demand G and VT instances' ({code}): enough, if nothing else runs"
    assert cloud.list_calls("RunInstances") == []


def test_cost_of_a_number_of_devices(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The option --gpus sets the number of devices; more than the file allows are refused with numbers."""
    _write_cluster(cloud)
    cloud.limit("g4dn.xlarge", 0.0)

    one = dtfperf("cost", "--cluster=test", "--gpus=1").out
    assert "1 x g4dn.xlarge on demand" in one
    assert "4 vCPUs of 0 in quota" in one
    assert "too few" in one

    output = dtfperf("cost", "--cluster=test", "--gpus=3")
    assert output.code == 1
    assert (
        "has 2 hosts of 1 device, but 3 devices need 3 hosts. Ask for fewer devices, or raise count in clusters.toml"
        in output.err
    )


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["up", "--cluster=test"], 2, "set keep = true in its table, or let `pytest --cluster=test` launch and end its own"),
        (["cost", "--cluster=test", "--gpus=0"], 2, "--gpus must be at least 1, not 0"),
        (["status", "--cluster=local"], 2, "cluster 'local' is one of backend 'local', not ec2"),
        (["status", "--cluster=test", "--region=us-east-1"], 2, "--cluster defines the region: leave --region out"),
        (["status", "--region=us-east-9"], 2, "unknown region 'us-east-9'"),
        (["ssh"], 1, "there is no instance '0'. There are: none"),
    ],
)
def test_invalid_arguments_are_refused(cloud: Cloud, dtfperf: Dtfperf, arguments: list[str], code: int, words: str) -> None:
    """Invalid arguments are refused in one line with a hint, and nothing is launched."""
    _write_cluster(cloud)

    output = dtfperf(*arguments)

    assert (output.code, output.out) == (code, "")
    assert words in output.err
    assert output.err.count("\n") == 1
    assert cloud.list_calls("RunInstances") == []


def test_no_credentials(cloud: Cloud, dtfperf: Dtfperf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing credentials are reported in one line with the sources that boto3 reads."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    output = dtfperf("status", "--region=us-east-1")

    assert (output.code, output.out) == (1, "")
    assert "no AWS credentials were found" in output.err


@pytest.fixture
def argv_of_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file to which a replaced ssh writes its arguments, one per line."""
    ssh, file = tmp_path / "bin" / "ssh", tmp_path / "argv"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{file}"\nexit 7\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    return file


def _ssh(*arguments: str) -> Ended:
    """Run the command in a process of its own, which becomes ssh."""
    ended = zygote.dtfperf("ec2", "ssh", *arguments)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("which", ["number", "id"])
def test_ssh(cloud: Cloud, argv_of_ssh: Path, which: str) -> None:
    """The command becomes ssh with the run's key, its own known hosts and strict checking, to the login address."""
    found = _launch(cloud, "a-run", GONE)

    ended = _ssh("1" if which == "number" else found[1], "--", "nvidia-smi", "-L")

    words = argv_of_ssh.read_text().splitlines()
    folder = get_state_folder() / "a-run"
    assert ended.code == 7, ended.err
    assert f'IdentityFile="{folder}/login"' in words
    assert "StrictHostKeyChecking=yes" in words
    assert f"HostKeyAlias={found[1]}" in words
    assert any(word.startswith("UserKnownHostsFile=") and str(folder) in word for word in words)
    assert words[words.index("--") :] == ["--", f"ubuntu@{cloud.instance(found[1]).public_ip}", "nvidia-smi", "-L"]


def test_ssh_from_another_machine_is_refused(cloud: Cloud, dtfperf: Dtfperf, tmp_path: Path) -> None:
    """A login from another machine than that of the launch is refused with that machine's name."""
    (theirs,) = _launch(cloud, "theirs", ELSEWHERE, folder=tmp_path / "elsewhere", count=1)

    output = dtfperf("ssh", theirs)

    assert output.code == 1
    assert f"instance {theirs} was launched from another machine (process 17 on other-machine)" in output.err


def test_ssh_to_an_unknown_instance_is_refused(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """An unknown instance is refused with the known ones."""
    (only,) = _launch(cloud, "a", count=1)

    assert f"there is no instance 'i-0'. There are: 0 {only}" in dtfperf("ssh", "i-0").err
    assert "there is no instance '1'" in dtfperf("ssh", "1").err


def test_up_without_agreement_is_refused(cloud: Cloud, dtfperf: Dtfperf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched without max_usd, --yes or a terminal, and the message has the costs."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")  # no user to ask, also when these tests run at a terminal
    _write_cluster(cloud, "keep = true")
    text = Path("clusters.toml").read_text()
    Path("clusters.toml").write_text(text.replace("max_usd = 50\n", ""))

    output = dtfperf("up", "--cluster=test")

    assert output.code == 1
    assert "at most $3.16" in output.err
    assert "No user has agreed to that" in output.err
    assert cloud.list_calls("RunInstances") == []


def test_up_above_the_limit_is_refused(cloud: Cloud, dtfperf: Dtfperf) -> None:
    """The option --yes does not allow costs above max_usd."""
    _write_cluster(cloud, "keep = true")
    text = Path("clusters.toml").read_text()
    Path("clusters.toml").write_text(text.replace("max_usd = 50\n", "max_usd = 2\n"))

    output = dtfperf("up", "--cluster=test", "--yes")

    assert output.code == 1
    assert "more than max_usd = 2 of cluster 'test'" in output.err
    assert cloud.list_calls("RunInstances") == []


def test_up_ssh_down(datacenter: DataCenter, capfd: pytest.CaptureFixture[str]) -> None:
    """The commands up, status, ssh and down work on machines: kept, shown, logged in to, and gone."""
    _write_cluster(datacenter, "keep = true", "boot_s = 600")

    assert main(["ec2", "up", "--cluster=test", "--gpus=1", "--json"]) == 0
    output = capfd.readouterr()
    assert "is kept until" in output.err
    assert len(read("ec2 up", output.out)["hosts"]) == 1
    (instance_id,) = datacenter.list_resources().instances

    assert main(["ec2", "status"]) == 0
    assert "kept for the next session" in _line(capfd.readouterr().out, instance_id)

    ended = _ssh("0", "--", "echo", "over", "there")
    assert ended.code == 0, ended.err
    assert "over there" in ended.out

    assert main(["ec2", "down"]) == 0
    assert datacenter.list_resources() == NOTHING
