"""Tests of an external command in a perf test: its rate is a measurement with a baseline and a verdict."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugin.conftest import COMMANDS_HERE, PerfTests, perf_tests_in
from tests.plugin.test_verdicts import baseline_file, records, session

PROGRAM = """
import os, sys, time
print(*sys.argv[1:])
if "--job_name=ps" in sys.argv:
    time.sleep(600)
print("total images/sec:", os.environ["RATE"])
"""

PERF_TEST = """
def test_another(train, baseline, gpus, num_ps, variable_update):
    measurement = train(
        command=["python", "another.py", "--num_batches={steps}"], gpus=gpus, num_ps=num_ps, variable_update=variable_update,
    )
    baseline.check(measurement)
"""

# What a test for our own training says of a cluster: a batch size is nothing that this program asks for.
CLUSTERS = f"""{COMMANDS_HERE}
[local.training]
repeats = 4
batch_size = 10
steps = 4
margin = 0.1
"""


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """A program beside the perf test that runs it."""
    perf = perf_tests_in(tmp_path)
    perf.write(PERF_TEST)
    (perf.folder / "perf" / "another.py").write_text(PROGRAM)
    (perf.folder / "perf" / "clusters.toml").write_text(CLUSTERS)
    return perf


def test_command_gets_verdicts(perf: PerfTests) -> None:
    """The rate of a program becomes a baseline under its command, and a slower one is a regression."""
    accepted = perf.run("--gpus=2", "--update-baselines", "--steps=7", "--batch-size=3", RATE="100")
    accepted.line("another gpus=2 num_ps=1 parameter_server: new, 100")
    (key,) = json.loads(baseline_file(perf).read_text())["entries"]
    assert key.startswith("model=another batch_size=0 gpus=2 num_ps=1 "), "it asks for no batch size"
    assert key.endswith(" command=python,another.py,--num_batches={steps}")
    log, *_ = (perf.folder / "perf_results").rglob("worker-1.log")  # of each run
    assert log.read_text().startswith("$ python another.py --num_batches=7 --job_name=worker --task_index=1 --ps_hosts=")

    slower = perf.run("--gpus=2", RATE="80")
    assert slower.code == 1
    slower.line("REGRESSED: another gpus=2 num_ps=1 parameter_server")
    assert session(perf)["verdicts"] == {"REGRESSED": 1}
    (record,) = records(perf)
    assert [run["reported_rates"] for run in record["runs"]] == [{"worker:0": "80", "worker:1": "80"}] * 3


def test_command_rate_is_read_whole_or_refused(perf: PerfTests) -> None:
    """A number with separators is that number in the record, and an ambiguous one fails the test with its line."""
    assert perf.run("--gpus=1", "--repeats=1", RATE="\x1b[1m1,234.56\x1b[0m").code == 0
    (record,) = records(perf)
    assert (record["images_per_sec"], record["runs"][0]["reported_rates"]) == (1234.56, {"worker:0": "1,234.56"})
    unclear = perf.run("--gpus=1", "--repeats=1", RATE="1,234")
    assert unclear.code == 1
    unclear.line("the rate of worker:0 cannot be read, because '1,234' may be one number with thousands")
    unclear.line("    | total images/sec: 1,234")


SERVED = """
import sys, time
if "--job_name=ps" in sys.argv:
    time.sleep(600)
(hosts,) = (word for word in sys.argv if word.startswith("--ps_hosts="))
print("total images/sec:", 100 * len(hosts.split(",")))
"""
IN_TURN = """
def test_another(train, num_ps):
    train.in_turn({"gpus": 1, "num_ps": 1}, {"gpus": 2, "num_ps": num_ps}, command=["python", "another.py"])
"""


def test_command_in_turn_has_its_servers_swept(perf: PerfTests) -> None:
    """A program that takes turns with another is first measured with each number of servers, and then trains with the
    fastest."""
    perf.write(IN_TURN)
    (perf.folder / "perf" / "another.py").write_text(SERVED)
    ended = perf.run("--num-ps=sweep", "--repeats=1")
    assert ended.code == 0, ended.out
    found = [(record["spec"]["gpus"], record["spec"]["num_ps"], record["images_per_sec"]) for record in records(perf)]
    assert found == [(2, 1, 100), (2, 2, 200), (1, 1, 100), (2, 2, 200)]


STEPS = """
from pytest_dtfperf.steps import Steps
steps = Steps(images_per_step=10, warmup=2)
for _ in range(6):
    with steps:
        sum(range(10_000))
"""


def test_command_steps_give_its_rate(perf: PerfTests) -> None:
    """The record of a program that reports its steps has those after the warm-up and their rate, and impossible steps fail the
    test."""
    (perf.folder / "perf" / "another.py").write_text(STEPS)
    assert perf.run("--gpus=1", "--repeats=1").code == 0
    (record,) = records(perf)
    (run,) = record["runs"]
    assert len(run["step_s"]["worker:0"]) == 4
    assert run["images_per_sec"] == pytest.approx(40 / sum(run["step_s"]["worker:0"]))
    (perf.folder / "perf" / "another.py").write_text(STEPS.replace("images_per_step=10", "images_per_step=-1"))
    impossible = perf.run("--gpus=1", "--repeats=1")
    assert impossible.code == 1
    impossible.line("worker:0 reported impossible steps: step 1 has -1 images")


OUT_OF_STEP = """
import sys, time
from pathlib import Path
from pytest_dtfperf.steps import Steps
if "--job_name=ps" in sys.argv:
    time.sleep(600)
begun = Path({begun!r})
if "--task_index=0" in sys.argv:
    begun.touch()
else:
    while not begun.exists():
        time.sleep(0.01)
    begun.unlink()  # for the next run
    time.sleep(1.5)
steps = Steps(images_per_step=10)
for _ in range(6):
    with steps:
        time.sleep(0.01)
"""


def test_command_with_a_late_worker_is_invalid_on_a_busy_host(perf: PerfTests) -> None:
    """A worker that begins its steps late in each run is named with the seconds, though another process has a core."""
    (perf.folder / "perf" / "another.py").write_text(OUT_OF_STEP.format(begun=str(perf.folder / "begun")))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        ended = perf.run("--gpus=2", "--repeats=2")
    finally:
        busy.kill()
        busy.wait()
    assert ended.code == 1
    assert session(perf)["verdicts"] == {"INVALID": 1}
    assert re.search(r"worker:1 .* \d\.\d+ s", ended.out), ended.out


LATE = """
import os, socket, sys, time
if "--job_name=ps" in sys.argv:
    time.sleep(600)
(hosts,) = (word.partition("=")[2].split(",") for word in sys.argv if word.startswith("--worker_hosts="))
first = "--task_index=0" in sys.argv
host, port = hosts[0].rsplit(":", 1)
if first:
    other, _ = socket.create_server(("", int(port))).accept()
else:
    for _ in range(600):
        try:
            other = socket.create_connection((host, int(port)))
            break
        except OSError:
            time.sleep(0.1)
other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
from pytest_dtfperf.steps import Steps
steps = Steps(images_per_step=10)
for _ in range(26):
    if not first:
        time.sleep(float(os.environ["RATE"]))  # as to read a batch
    with steps:
        time.sleep(0.02)
        other.send(b"x")
        other.recv(1)
"""


@pytest.mark.campaign(only=True)
def test_command_with_a_late_worker_names_it(perf: PerfTests) -> None:
    """A worker that takes longer between its steps than with the baseline is the cause of a slower rate, with its seconds."""
    (perf.folder / "perf" / "another.py").write_text(LATE)
    perf.run("--gpus=2", "--repeats=2", "--update-baselines", RATE="0")
    slower = perf.run("--gpus=2", "--repeats=3", RATE="0.2")
    assert slower.code == 1, slower.out
    (record,) = records(perf)
    (cause,) = record["explanation"]["causes"]
    assert (cause["kind"], cause["location"]) == ("straggler", "worker:1")
    slower.line("ms later in its steps than the others")


def test_command_without_a_rate_fails_without_a_traceback(perf: PerfTests) -> None:
    """A program without a rate in its output fails its test with its last lines and the pattern, and without a traceback."""
    perf.write(PERF_TEST.replace("gpus=gpus", 'rate_pattern=r"speed: (.*)", gpus=gpus'))
    ended = perf.run("--gpus=1", RATE="1")
    assert ended.code == 1
    ended.line("""no line of worker:0's output matches rate_pattern=r"speed: (.*)\"""")
    ended.line("| total images/sec: 1")
    assert "Traceback" not in ended.out


REFUSED = {
    'command="python another.py"': "command must be a list of arguments",
    'command=["python", "another.py", "{step}"]': "command asks for {step}, which is unknown. Did you mean {steps}?",
    'command=["python", "another.py"], precision="bf16"': "precision has no effect on an external command",
    "num_ps=1": "train(): unknown model ''",
    'command=["python", "another.py"]': (
        "DTFPERF_SLOWDOWN does not make commands sleep; another gpus=1 num_ps=1 parameter_server is an external command"
    ),
}


def test_command_that_cannot_run_is_refused(perf: PerfTests) -> None:
    """A command that would be misunderstood, or an injected slow-down of one, is refused before anything is started."""
    perf.write("\n".join(f"def test_{i}(train):\n    train({how})\n" for i, how in enumerate(REFUSED)))
    ended = perf.run(DTFPERF_SLOWDOWN="worker:0=0.1")
    ended.line(f"{len(REFUSED)} failed")
    for words in REFUSED.values():
        ended.line(words)
    assert not (perf.folder / "perf_results").exists()


def test_command_dry_run_shows_its_placement(perf: PerfTests) -> None:
    """--dry-run shows the placement of a program's tasks."""
    ended = perf.run("--gpus=2", "--dry-run")
    ended.line("another gpus=2 num_ps=1 parameter_server")
    ended.line("worker 0-1 on node 1")
