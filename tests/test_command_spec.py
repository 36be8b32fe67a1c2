"""Tests of an external command in a spec: refusals, the arguments and variables of its tasks, and the rate from its output."""

import json
from typing import Any

import pytest

from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.errors import InvalidMeasurement, SpecError
from pytest_dtfperf.launch.summary import summarise
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.command import TOLERANCE, literal, needs_addresses, program_name
from pytest_dtfperf.spec.spec import task_arguments, task_variables

ADDRESSES = {"ps": ("a:1",), "worker": ("a:2", "b:2")}


def spec(*words: str, **changes: Any) -> Spec:
    settings = {"model": "train", "batch_size": 0, "gpus": 2, "num_ps": 1, "command": ("python", "train.py", *words)}
    return Spec(**{**settings, **changes})


def order(spec: Spec, job: str = "worker", index: int = 1, **changes: Any) -> TaskOrder:
    return TaskOrder(**{"run": "r", "job": job, "index": index, "spec": spec, "cluster": ADDRESSES, **changes})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"command": "python train.py"}, "command must be a list of arguments"),
        ({"command": ("train", "{batch_size}")}, r"command asks for {batch_size}, which has no value. Pass batch_size="),
        ({"command": ("train", "{data_dir}")}, r"asks for {data_dir}, which has no value"),
        ({"command": ("train", "{indx}")}, r"command asks for {indx}, which is unknown. Did you mean {index}\?"),
        ({"command": ("train", "{command}")}, r"{command}, which is unknown"),
        ({"environment": ("RANK={Rank}",)}, r"environment asks for {Rank}, which is unknown"),
        ({"environment": ("RANK={INDEX}",)}, r"environment asks for {INDEX}, which is unknown. Did you mean {index}\?"),
        ({"environment": ("A={chief}",)}, r"Did you mean {chief_\w+}\?.* Braces that mean themselves are doubled: {{chief}}"),
        ({"environment": ("A={data_dir}",)}, r"environment asks for {data_dir}, which has no value"),
        ({"role_flags": ("--r={index}", "{workrs}")}, r"role_flags asks for {workrs}, which .* Did you mean {workers}"),
        (
            {"command": (), "model": "trivial", "batch_size": 8, "environment": ("NCCL_X={index}",)},
            r"environment asks for {index}, and there is no command",
        ),
        ({"precision": "bf16"}, r"precision has no effect on an external command unless .* asks for {precision}"),
        ({"steps": 7}, "steps has no effect"),
        ({"role_flags": ()}, "nothing tells the program's tasks which of them is which"),
        ({"role_flags": "tf_config"}, "role_flags must be a list of arguments, .* or 'TF_CONFIG'"),
        ({"rate_pattern": "images/sec"}, "needs a group around the number"),
        ({"rate_pattern": "(images"}, r"""rate_pattern=r"\(images" is no regular expression: missing \)"""),
        ({"rate_of": "sum"}, "unknown rate_of 'sum'. .*chief, each, mean, slowest"),
        ({"rate_of": "each", "cross_replica_sync": False}, "the slowest speaks for all"),
        ({"model": "my model"}, "letters, digits"),
        ({"evaluate": True}, "evaluate=true is for our own training"),
        ({"command": (), "model": "trivial", "batch_size": 8, "rate_of": "mean"}, "rate_of is for an external command"),
        ({"num_ps": 0}, "needs num_ps of at least 1"),
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1, not -1"),
        ({"model": 50}, "model=50 is what the program's results are called: letters, digits"),
    ],
)  # fmt: skip
def test_spec_of_an_impossible_command_is_refused(changes: dict[str, Any], words: str) -> None:
    """A spec that a program would misunderstand, or that has no effect, is refused with the allowed values."""
    with pytest.raises(SpecError, match=words):
        spec(**changes)


def test_task_has_flags_of_its_role() -> None:
    """By default a task gets the flags of tf_cnn_benchmarks after the command's own arguments."""
    assert task_arguments(order(spec("--x=1"))) == [
        "python", "train.py", "--x=1", "--job_name=worker", "--task_index=1", "--ps_hosts=a:1", "--worker_hosts=a:2,b:2",
    ]  # fmt: skip
    assert task_arguments(order(spec(), job="ps", index=0))[2:4] == ["--job_name=ps", "--task_index=0"]


def test_role_flags_can_have_any_form() -> None:
    """Names of a program's own for its role are arguments with braces, in the command or in role_flags."""
    own = spec("{job}", "{index}", role_flags=("--hosts", "{worker_hosts}"))
    assert task_arguments(order(own))[2:] == ["worker", "1", "--hosts", "a:2,b:2"]


def test_task_without_servers_has_no_flag_for_them() -> None:
    """Without parameter servers there is no flag for them, and a single process has no flags of a role."""
    alone = spec(gpus=1, num_ps=0)
    workers = order(alone, cluster={"worker": ("a:2", "b:2")})
    assert task_arguments(workers)[2:] == ["--job_name=worker", "--task_index=1", "--worker_hosts=a:2,b:2"]
    assert task_arguments(order(alone, index=0, cluster={})) == ["python", "train.py"]


def test_tf_config_has_cluster_and_task() -> None:
    """TF_CONFIG holds the cluster and the task as TensorFlow's resolver reads them, no flag is added, and a single process has
    none."""
    task_order = order(spec(role_flags="TF_CONFIG"), job="ps", index=0)
    assert task_arguments(task_order) == ["python", "train.py"]
    assert json.loads(task_variables(task_order)["TF_CONFIG"]) == {
        "cluster": {"ps": ["a:1"], "worker": ["a:2", "b:2"]}, "task": {"type": "ps", "index": 0},
    }  # fmt: skip
    assert "TF_CONFIG" not in task_variables(order(spec(gpus=1, num_ps=0, role_flags="TF_CONFIG"), index=0, cluster={}))


def test_arguments_are_filled_in() -> None:
    """Braces stand for fields of the spec and of the task, and doubled or unknown ones stay braces."""
    asking = spec("{batch_size},{steps},{xla},{devices},{threads},{workers}", "{{job}}", '{"a": 1}', batch_size=8, steps=7)
    found = task_arguments(order(asking, num_devices=3, threads=4))
    assert found[2:5] == ["8,7,false,3,4,2", "{job}", '{"a": 1}']
    assert task_arguments(order(asking, job="ps", index=0, num_devices=0))[2].split(",")[3] == "1", "as many as a worker has"


def test_environment_of_the_spec_reaches_the_task() -> None:
    """A variable of the spec is in the environment of the program, with any = in its value."""
    assert task_variables(order(spec(environment=("NCCL_ALGO=Ring=1",)))) == {"NCCL_ALGO": "Ring=1"}


def test_environment_is_filled_in() -> None:
    """Variables are filled in as arguments are, and braces around anything else, as in JSON, stay."""
    words = (
        "RANK={index}",
        "AT={chief_host}:{chief_port}",
        "ALL={hosts}",
        'J={"a": {"b": [{}]}}',
        "L={{index}}",
        "B={batch_size}",
    )
    variables = task_variables(order(spec(environment=words, batch_size=8, precision="fp32"), index=1))
    assert variables == {
        "RANK": "1", "AT": "a:2", "ALL": "a,b", "J": '{"a": {"b": [{}]}}', "L": "{index}", "B": "8",
    }  # fmt: skip
    assert task_variables(order(spec(environment=('J={"index":{index}}',)), index=1)) == {"J": '{"index":1}'}


def test_host_of_an_ipv6_address_has_no_brackets() -> None:
    """A program that takes host and port separately gets the host without brackets."""
    found = task_variables(
        order(spec(environment=("A={chief_host} {chief_port} {hosts}",)), cluster={"worker": ("[fd00::1]:7", "b:2")})
    )
    assert found == {"A": "fd00::1 7 fd00::1,b"}


def test_chief_address_is_that_of_the_chief_task() -> None:
    """In a cluster with a chief the arguments have its address, not that of the first worker."""
    led = order(spec("--at={chief_host}:{chief_port}"), cluster={"chief": ("c:9",), "worker": ("a:2",)})
    assert task_arguments(led)[2] == "--at=c:9"


def test_variable_of_missing_jobs_is_left_out() -> None:
    """A single process has no variables with addresses of jobs, but has its index and the number of workers, and the chief's
    address where the command needs one."""
    words = ("PS={ps_hosts}", "CHIEF={chief_hosts}", "WORKERS={worker_hosts}", "RANK={index}", "SIZE={workers}")
    alone = order(spec(gpus=1, num_ps=0, environment=words), index=0, cluster={})
    assert task_variables(alone) == {"RANK": "0", "SIZE": "1"}
    met = spec(gpus=1, num_ps=0, environment=("AT={chief_host}:{chief_port}",))
    assert needs_addresses(met)
    assert task_variables(order(met, index=0, cluster={"worker": ("a:2",)})) == {"AT": "a:2"}
    assert task_arguments(order(met, index=0, cluster={"worker": ("a:2",)})) == ["python", "train.py"]
    assert not needs_addresses(spec(gpus=1, num_ps=0, environment=words))


def test_rank_in_the_environment_replaces_role_flags() -> None:
    """Parameter servers and workers need no flags where the environment has the job and the index of each."""
    ranked = spec(role_flags=(), environment=("JOB={job}", "RANK={index}"))
    assert task_arguments(order(ranked)) == ["python", "train.py"]
    assert task_variables(order(ranked, job="ps", index=0)) == {"JOB": "ps", "RANK": "0"}


@pytest.mark.parametrize("text", ["{index}", "{{index}}", '{"a": {"index": {}}}', "{{{index}}}", "{ index }", "plain"])
def test_literal_is_filled_in_unchanged(text: str) -> None:
    """Text that is quoted by `literal` comes through unchanged, with any braces in it."""
    assert task_variables(order(spec(environment=(f"A={literal(text)}",)))) == {"A": text}


@pytest.mark.parametrize(
    "command, name",
    [
        (["python", "-u", "/opt/my train.py", "--x=1"], "my_train"),
        (["python3", "-m", "mine.train"], "mine.train"),
        (["bash", "run.sh"], "run"),
        (["/opt/bin/train", "--out", "x"], "train"),
    ],
)
def test_program_name_is_its_script_or_module(command: list[str], name: str) -> None:
    """The name of a command is the script or module of an interpreter, or the program."""
    assert program_name(command) == name


def test_label_and_key_identify_the_command() -> None:
    """A key holds the whole command but not the way its rate is read, and a label names the program where the model does
    not."""
    named = spec("--a b", model="inception3", batch_size=8)
    assert named.label == "inception3 b8 gpus=2 num_ps=1 parameter_server command=train"
    assert spec().label == "train gpus=2 num_ps=1 parameter_server"
    assert named.key.split(" ")[-1] == "command=python,train.py,--a%20b"
    assert named.replace(rate_pattern="x(.)", rate_of="mean", command_dir="/", role_flags="TF_CONFIG").key == named.key


def test_spec_with_a_command_survives_json() -> None:
    """A spec with a command is the same after JSON."""
    sent = spec("{index}", role_flags=("{job}",))
    assert Spec.from_json(json.loads(json.dumps(sent.to_json()))) == sent


def measure_rate(spec: Spec, *reported: str | None, devices: tuple[int, ...] = (1, 1)) -> float:
    reports = [
        TaskReport(
            job="worker",
            index=index,
            num_devices=own,
            elapsed_s=3.0,
            reported_rate=word,
            last_lines=() if word else ["so long"],
        )
        for index, (word, own) in enumerate(zip(reported, devices, strict=True))
    ]
    hosts = {report.name: "n1" for report in reports}
    run = summarise(spec, reports, hosts=hosts, launch_s={}, wall_s=4.0)
    assert (run.step_s, run.loss, run.elapsed_s) == ({}, [], 3.0), "nothing is made up"
    assert run.reported_rates == {report.name: report.reported_rate for report in reports if report.reported_rate}
    return run.images_per_sec


@pytest.mark.parametrize(
    "rule, reported, devices, rate",
    [
        ("chief", ("10", None), (1, 1), 10),
        ("mean", ("10", "14"), (1, 1), 12),
        ("mean", ("10", "19.8"), (1, 1), 14.9),
        ("slowest", ("10", "9.5"), (1, 1), 9.5),
        ("each", ("10", "9"), (1, 1), 18),
        ("each", ("20", "11"), (2, 1), 30),
    ],
)
def test_rate_rule_combines_the_workers_rates(
    rule: str, reported: tuple[str | None, ...], devices: tuple[int, ...], rate: float
) -> None:
    """Each rule makes one rate from the printed rates of the workers."""
    assert measure_rate(spec(rate_of=rule, gpus=sum(devices)), *reported, devices=devices) == pytest.approx(rate)


@pytest.mark.parametrize(
    "rule, reported, words",
    [
        ("chief", (None, "9"), r"matches rate_pattern=r\"total images/sec: \(\[\\d\.\]\+\)\"; .*\n    \| so long"),
        ("mean", ("9", None), "no line of worker:1's output"),
        ("chief", ("fast", "9"), "found 'fast' in worker:0's output, which is no rate"),
        ("chief", ("nan", "9"), "found 'nan'"),
        ("chief", ("0.0", "9"), "found '0.0'"),
        (
            "mean",
            ("1000", "10"),
            "number for the cluster's rate, but worker:1 prints 10 images/sec and worker:0 1000: 2 times as many",
        ),
        ("mean", ("20", "10"), "cannot both be true"),
        (
            "each",
            ("10", str(9.9 / (1 + TOLERANCE))),
            "worker:1 prints 8.25 images/sec per device and worker:0 10: more than 20 %",
        ),
    ],
)
def test_unusable_rate_is_invalid(rule: str, reported: tuple[str | None, ...], words: str) -> None:
    """Without a plausible number of each worker that the rule needs the measurement is invalid, and the message names the
    worker."""
    with pytest.raises(InvalidMeasurement, match=words):
        measure_rate(spec(rate_of=rule), *reported)


def test_missing_worker_is_invalid() -> None:
    """A program on fewer workers than requested is no measurement of them."""
    with pytest.raises(InvalidMeasurement, match="1 devices trained where 2 were asked for"):
        measure_rate(spec(), "10", devices=(1,))
