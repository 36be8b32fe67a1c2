"""clusters.toml: valid contents, and the errors of invalid ones."""

import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import ClusterFileError
from pytest_dtfperf.node import probes
from pytest_dtfperf.node.owner import boot_id
from tests.node.stand_in_smi import MISMATCH, NO_DRIVER, gpu, use_smi

FULL = """
[workshop]
backend = "local"
hosts = 2
devices_per_host = 1
device = "cpu"
devices_per_worker = 1
ps_on_worker_hosts = false
ps_per_host = 2
fixed_ports = true
start = "cold"
python = "/usr/bin/python3"
data = "s3://digits/mnist"
entry = "tests.node.toy_task:run"
heartbeat_timeout_s = 5
allocation = "test"
max_jobs = 3
limits = { ready_s = 60, silence_s = 4.5 }
training = { steps = 20, warmup_steps = 2, margin = 0.1 }
models.inception3 = { batch_size = 4 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "clusters.toml"


def load(file: Path, text: str) -> dict[str, ClusterConfig]:
    file.write_text(text)
    return named.load(file)


def test_local_needs_no_file() -> None:
    """The cluster `local` exists without a file, with defaults for everything."""
    assert named.load(None) == {"local": ClusterConfig(name="local")}


def test_table_with_all_keys_is_read(file: Path) -> None:
    """Each key of a table is read into its field of the configuration."""
    config = load(file, FULL)["workshop"]
    assert config == ClusterConfig(
        name="workshop",
        backend="local",
        file=file,
        backend_keys={"hosts": 2},
        devices_per_host=1,
        device="cpu",
        devices_per_worker=1,
        ps_on_worker_hosts=False,
        ps_per_host=2,
        fixed_ports=True,
        start="cold",
        python="/usr/bin/python3",
        data="s3://digits/mnist",
        entry="tests.node.toy_task:run",
        heartbeat_timeout_s=5,
        allocation="test",
        max_jobs=3,
        limits=Limits(ready_s=60, silence_s=4.5),
        training={"steps": 20, "warmup_steps": 2, "margin": 0.1},
        models={"inception3": {"batch_size": 4}},
    )
    assert config.max_hosts == 2


def test_a_file_adds_to_local_and_may_replace_it(file: Path) -> None:
    """`local` always exists; a table of that name overrides it."""
    assert set(load(file, FULL)) == {"local", "workshop"}
    assert load(file, '[local]\nbackend = "local"\ndevices_per_host = 4')["local"].devices_per_host == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[x]\n", r"clusters\.toml: \[x\] lacks its backend. Known: ec2, local, simulated, slurm, ssh"),
        ('[x]\nbackend = "slum"', r"\[x\] unknown backend 'slum'. Did you mean 'slurm'\?"),
        ('[x]\nbackend = "local"\nfixed_port = true', r"\[x\] unknown key 'fixed_port'. Did you mean 'fixed_ports'\?"),
        ('[x]\nbackend = "local"\npartition = "normal"', r"\[x\] unknown key 'partition'"),
        ('[x]\nbackend = "local"\ndevices_per_host = 0', r"\[x\] devices_per_host must be a whole number of at least 1, not 0"),
        ('[x]\nbackend = "local"\ndevices_per_host = true', r"\[x\] devices_per_host must be a whole number"),
        ('[x]\nbackend = "local"\nstart = "hot"', r'\[x\] start must be "warm" or "cold", not \'hot\''),
        ('[x]\nbackend = "local"\nentry = "toy"', r'\[x\] entry must be "module:function", not \'toy\''),
        ('[x]\nbackend = "local"\nlimits = { redy_s = 3 }', r"\[x.limits\] unknown key 'redy_s'. Did you mean 'ready_s'\?"),
        ('[x]\nbackend = "local"\nlimits = { ready_s = 0 }', r"\[x.limits\] ready_s must be a number above 0, not 0"),
        ('[x]\nbackend = "local"\ntraining = { step = 3 }', r"\[x.training\] unknown key 'step'. Did you mean 'steps'\?"),
        ('[x]\nbackend = "local"\nmodels.incepton3 = {}', r"x.models\] unknown model 'incepton3'. Did you mean 'inception3'\?"),
        ('[x]\nbackend = "local"\nmodels.mnist = { batch = 3 }', r"mnist\] unknown key 'batch'. Did you mean 'batch_size'\?"),
        ('[x]\nbackend = "local"\nmodels.mnist = 3', r"\[x.models.mnist\] must be a table, not 3"),
        ('[x]\nbackend = "local"\ndata = "bucket/prefix"', r'\[x\] data must be "s3://bucket" or "s3://bucket/prefix"'),
        ('[x]\nbackend = "local"\nallocation = "run"', r'\[x\] allocation must be "session" or "test", not \'run\''),
        ('[x]\nbackend = "local"\nmax_jobs = 0', r"\[x\] max_jobs must be a whole number of at least 1, not 0"),
        ('[x]\nbackend = "local"\nworkers_per_host = 2', r"workers_per_host = 2 needs devices_per_host, to share them out"),
        ('[x]\nbackend = "local"\nworkers_per_host = 3\ndevices_per_host = 4', r"workers_per_host = 3 must divide the 4 dev"),
        ('[x]\nbackend = "local"\nworkers_per_host = 2\ndevices_per_host = 8\ndevices_per_worker = 4',
         r"\[x\] has workers_per_host = 2 and devices_per_worker = 4: only one is allowed"),
        ('[x]\nbackend = "local"\ninterface = "ib0"', r"\[x\] has interface, but tasks of one machine use its loopback"),
        ('[x]\nbackend = "local"\ncache_dir = "cache"', r"\[x\] cache_dir must be the path of a folder, like "),
        ('[x]\nbackend = "local"\nscratch_dir = "/tmp/$(id)"', r"\[x\] scratch_dir must be the path of a folder, like "),
        ('[x]\nbackend = "slurm"\ngpus_per_node = 1\nspool = "/a"\nscratch_dir = "/b"', r"\[x\] has spool and scratch_dir"),
        ('[x]\nbackend = "slurm"\ninterface = "10.1.0.7/16"', r"\[x\] interface must be the name of an interface like "),
        ('[x]\nbackend = "ssh"\nhosts = "a"\ngpus_per_host = 1\ninterface = "ib0"\nprivate_address = "10.0.0.0/8"',
         r"\[x\] has interface and private_address: only one of them may set the addresses of tasks"),
        ("x = 3", r"\[x\] must be a table, not 3"),
        ("[x", r"cannot read .*clusters\.toml"),
        ("[x]\nbackend = {}", r"\[x\] backend must be text, not {}"),
        ('[x]\nbackend = ["local"]', r"\[x\] backend must be text, not \['local'\]"),
        ('[x]\nbackend = "local"\ndata = "s3://a\\u0000"', r"\[x\] data must be"),
        ('["a\\nb"]\n', r'clusters\.toml: \["a\\nb"\] lacks its backend'),
        ("[x]\nhosts = " + "9" * 5000, r"cannot read .*: hosts is a number of 5000 digits \(at line 2\)"),
        ("[x]\nhosts = " + "9" * 50, r"clusters.toml: x.hosts is a whole number of more than 64 bits"),
        ("[x]\nhosts = 0x" + "f" * 5000, r"clusters.toml: x.hosts is a whole number of more than 64 bits"),
        ("\nx = " + "[" * 2000 + "]" * 2000, r"clusters.toml: line 2: tables and lists are more than 50 deep"),
        ("x = " + "[" * 60 + "]" * 60, r"clusters.toml: x\.0\.0.*: tables and lists are more than 50 deep"),
        ("[x." + ".".join("a" * 500) + "]", r"clusters.toml: .*: tables and lists are more than 50 deep"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_file_and_key(file: Path, text: str, words: str) -> None:
    """An invalid key is refused, with the file, the cluster, the key and the nearest valid one."""
    with pytest.raises(ClusterFileError, match=words):
        load(file, text)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('margin = "5%"', "margin must be a fraction, as 0.05 for 5 %, not '5%'"),
        ("margin = 5", "margin must be a fraction, as 0.05 for 5 %, not 5"),
        ("repeats = 0", "repeats must be a whole number of at least 1, not 0"),
        ("min_repeats = 1.5", "min_repeats must be a whole number of at least 1, not 1.5"),
        ('steps = "20"', "steps must be a whole number of at least 1, not '20'"),
        ("warmup_steps = -1", "warmup_steps must be a whole number of at least 0, not -1"),
        ("gpus = true", "gpus must be a whole number of at least 1, not True"),
        ('variable_update = "replicatd"', "unknown variable_update 'replicatd'. Did you mean 'replicated'?"),
        ('variable_update = ["replicated"]', "unknown variable_update"),
        ("optimizer = {}", "unknown optimizer '{}'"),
        ("learning_rate = nan", "learning_rate must be a finite number of at least 0, not nan"),
        ("momentum = 1.5", "momentum must be at least 0 and below 1, not 1.5"),
        ("rmsprop_epsilon = 0", "rmsprop_epsilon must be more than 0"),
        ("stop_at_top_1_accuracy = 95", "stop_at_top_1_accuracy must be more than 0 and at most 1, not 95"),
        ('xla = "no"', "xla must be true or false, not 'no'"),
        ("onednn = 1", "onednn must be true or false, not 1"),
        ("data_dir = 3", "data_dir must be text, not 3"),
        ('environment = "A=b"', "environment must be a list of texts of the form NAME=value, not 'A=b'"),
        ("environment = [1]", "environment must be texts of the form NAME=value, not 1"),
        ('seed = "x"', "seed must be a whole number of at least 0, not 'x'"),
    ],
)
@pytest.mark.parametrize("table", ["training", "models.mnist"])
def test_settings_are_checked_when_the_file_is_read(file: Path, table: str, setting: str, words: str) -> None:
    """An invalid setting of a training is refused with file, table and key, before the cluster is contacted."""
    with pytest.raises(ClusterFileError, match=re.escape(f"{file}: [x.{table}] {words}")):
        load(file, f'[x]\nbackend = "local"\n[x.{table}]\n{setting}\n')


def test_byte_order_mark_is_ignored(file: Path) -> None:
    """A file with a byte order mark, as some editors save it, is read."""
    file.write_bytes(b"\xef\xbb\xbf" + FULL.encode())
    assert set(named.load(file)) == {"local", "workshop"}


@pytest.mark.parametrize("content", [b"\xff\xfe[\x00x\x00", b"[x]\nbackend = '\xe4'\n"])
def test_file_in_another_encoding_is_refused(file: Path, content: bytes) -> None:
    """A file in another encoding is refused in one line with its path."""
    file.write_bytes(content)
    with pytest.raises(ClusterFileError, match=rf"cannot read {file}: it is not a UTF-8 text: byte"):
        named.load(file)


BACKEND_KEYS: dict[str, dict[str, Any]] = {
    "local": {"hosts": 2},
    "ssh": {"hosts": ["alice", "bob"], "gpus_per_host": 1},
    "slurm": {"gpus_per_node": 1},
    "ec2": {"instance_type": "p2.xlarge", "region": "us-east-2", "count": 4},
    "simulated": {"hosts": 4, "gpus_per_host": 2},
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_opens(file: Path, backend: str) -> None:
    """A cluster of each backend is read, picked by its name and opened; nothing is allocated or requested."""
    keys = "\n".join(f"{key} = {value!r}" for key, value in BACKEND_KEYS[backend].items())
    clusters = load(file, f'[place]\nbackend = "{backend}"\n{keys}')
    config = named.pick(clusters, "place")
    assert dict(config.backend_keys) == BACKEND_KEYS[backend]
    assert config.file == file
    named.open_cluster(config)


class FarBackend(named.Backend):
    requires = ("no_such_boto", "ec2")


def test_backend_with_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend without its library reports what to install before anything is started."""
    monkeypatch.setitem(cast("dict[str, Any]", BACKENDS), "far", FarBackend())
    with pytest.raises(ClusterFileError, match=r'no_such_boto, which is not installed: pip install "pytest-dtfperf\[ec2\]"'):
        named.pick({"x": ClusterConfig(name="x", backend="far")}, "x")


def test_unknown_cluster_is_refused_with_the_nearest() -> None:
    """An unknown cluster is refused with the known ones."""
    with pytest.raises(ClusterFileError, match=r"unknown cluster 'locl'\. Did you mean 'local'"):
        named.pick(named.load(None), "locl")


@pytest.mark.parametrize(
    ("config", "devices"),
    [
        (ClusterConfig(name="x", device="cpu"), min(2, len(os.sched_getaffinity(0)))),
        (ClusterConfig(name="x", devices_per_host=3), 3),
        (ClusterConfig(name="x", devices_per_host=3, backend_keys={"hosts": 2}), 6),
        (ClusterConfig(name="x", devices_per_host=3, backend_keys={"hosts": 2}, ps_on_worker_hosts=False), 3),
        (ClusterConfig(name="x", backend="slurm", backend_keys={"nodes": 8, "gpus_per_node": 1}), 8),
        (ClusterConfig(name="x", backend="ec2", devices_per_host=8, backend_keys={"count": 16}), 128),
        (ClusterConfig(name="x", backend="ssh", backend_keys={"hosts": ["a", "b", "c"], "gpus_per_host": 2}), 6),
        (ClusterConfig(name="x", backend="slurm", backend_keys={"nodes": 8, "gres": "gpu:p100:4"}), 32),
        (ClusterConfig(name="x", backend="slurm", backend_keys={"nodes": 8, "gpus_per_node": 4}, devices_per_host=2), 16),
        (ClusterConfig(name="x", backend="slurm", backend_keys={"partition": "normal"}), None),
    ],
)
def test_devices_are_counted_from_the_file(config: ClusterConfig, devices: int | None) -> None:
    """The number of a cluster's devices follows from the file, and for this machine from its cores."""
    assert capacity.count_devices(config) == devices


def test_workers_share_a_hosts_devices() -> None:
    """The devices of a worker are set directly, or by the number of workers per host."""
    eight = ClusterConfig(name="x", devices_per_host=8)
    assert capacity.predict_devices_per_worker(eight) == 1
    assert capacity.predict_devices_per_worker(replace(eight, devices_per_worker=8)) == 8
    assert capacity.predict_devices_per_worker(replace(eight, workers_per_host=2)) == 4
    by_gpus = ClusterConfig(name="x", backend="slurm", backend_keys={"gpus_per_node": 4}, workers_per_host=1)
    assert capacity.predict_devices_per_worker(by_gpus) == 4


def test_defaults_depend_on_the_backend() -> None:
    """Separate parameter servers have a host each, and a queue runs several jobs at a time, unless the file sets otherwise."""
    here = ClusterConfig(name="x")
    assert (here.most_ps_per_host, here.jobs_at_once) == (None, 1)
    far = ClusterConfig(name="x", backend="slurm", ps_on_worker_hosts=False)
    assert (far.most_ps_per_host, far.jobs_at_once) == (1, 4)
    given = replace(far, ps_per_host=3, max_jobs=2)
    assert (given.most_ps_per_host, given.jobs_at_once) == (3, 2)


def test_hosts_may_depend_on_the_count_of_devices() -> None:
    """A cluster file may set the number of hosts for one count of devices, without an effect on others."""
    config = ClusterConfig(name="x", backend="slurm", backend_keys={"nodes_per_gpu_count": {"8": 8, "16": 4}})
    assert [capacity.get_worker_hosts(config, count) for count in (4, 8, 16)] == [None, 8, 4]
    assert capacity.get_worker_hosts(ClusterConfig(name="x"), 8) is None


LOCAL = ClusterConfig(name="here")
FOUR = [gpu(f"GPU-{letter}") for letter in "abcd"]


@pytest.mark.parametrize(
    "visible, count", [(None, 4), ("-1", 0), ("NoDevFiles", 0), ("", 0), ("0,-1,1", 1), ("0,2,3", 3), ("GPU-b, GPU-a", 2)]
)
def test_local_gpus_are_those_that_agents_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    """A dry run counts this machine's GPUs as its agent does, also where /proc has none of the driver, as on WSL2."""
    use_smi(tmp_path, monkeypatch, *FOUR)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(probes.list_gpus()) == count
    assert capacity.predict_device(LOCAL) == ("gpu" if count else "cpu")
    assert capacity.predict_device(replace(LOCAL, device="cpu")) == "cpu"
    if count:
        assert capacity.count_devices(LOCAL) == count


def test_local_gpus_are_counted_with_the_clusters_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agents' environment in clusters.toml affects which GPUs they see."""
    use_smi(tmp_path, monkeypatch, *FOUR)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert capacity.count_devices(replace(LOCAL, environment=["CUDA_VISIBLE_DEVICES=1,2,3"])) == 3


def test_local_parts_of_gpus_are_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of a GPU that is divided by MIG is a device."""
    use_smi(tmp_path, monkeypatch, gpu("GPU-a", [("3g.20gb", "MIG-a"), ("3g.20gb", "MIG-b")]))
    assert capacity.count_devices(LOCAL) == 2


@pytest.mark.parametrize(
    "failure, visible, words",
    [
        (
            (18, MISMATCH),
            None,
            "the GPUs of this machine cannot be listed: nvidia-smi ended with exit code 18, and printed 'Failed",
        ),
        ((9, NO_DRIVER), "0", "CUDA_VISIBLE_DEVICES=0 names GPUs, but this machine has none that works. Load its driver, "),
        (None, "7", "the GPUs of this machine cannot be listed: CUDA_VISIBLE_DEVICES=7 shows CUDA no GPU"),
    ],
    ids=["driver and library differ", "no driver", "no such GPU"],
)
def test_local_gpus_that_cannot_be_counted_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: tuple[int, str] | None, visible: str | None, words: str
) -> None:
    """Requested GPUs that do not exist are an error of one line, and never replaced by cores; cores must be requested."""
    use_smi(tmp_path, monkeypatch, *FOUR, failure=failure)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ClusterFileError) as raised:
        capacity.count_devices(LOCAL)
    assert str(raised.value).startswith(f"cluster 'here': {words}")
    assert str(raised.value).endswith('To measure on its cores, set device = "cpu" in clusters.toml.')
    assert capacity.predict_device(replace(LOCAL, device="cpu")) == "cpu"


def choose_file(name: str, explicit: Path | None, *starts: Path) -> Path | None:
    return named.choose(name, explicit, starts)[0]


def test_file_is_found_beside_the_tests_or_above(tmp_path: Path, file: Path) -> None:
    """The named file goes first, then the first folder that has one, then those above it."""
    folder = tmp_path / "perf_tests" / "deep"
    folder.mkdir(parents=True)
    file.write_text(FULL)
    assert choose_file("workshop", None, folder) == file
    (tmp_path / "perf_tests" / "clusters.toml").write_text("")
    assert choose_file("local", None, folder) == tmp_path / "perf_tests" / "clusters.toml"
    assert choose_file("workshop", file, folder) == file


def test_file_of_the_perf_tests_is_found_from_the_project(tmp_path: Path, file: Path) -> None:
    """A file beside the perf tests is found from the project's root and from any folder in it, nearer ones first."""
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "perf_tests" / "clusters.toml").write_text(FULL)
    for start in (tmp_path, tmp_path / "docs", tmp_path / "perf_tests"):
        assert choose_file("workshop", None, start) == tmp_path / "perf_tests" / "clusters.toml"
    file.write_text(FULL)
    assert choose_file("workshop", None, tmp_path) == file


def test_named_file_must_exist(tmp_path: Path) -> None:
    """A file that was named and is not there is an error, not a default."""
    with pytest.raises(ClusterFileError, match="there is no cluster file"):
        choose_file("local", tmp_path / "cluster.toml", tmp_path)


def test_unknown_cluster_is_reported_with_searched_folders(tmp_path: Path, file: Path) -> None:
    """An unknown cluster is refused with the file that was read, or with the searched folders."""
    with pytest.raises(ClusterFileError, match=rf"'lab'.*No clusters.toml was found in {tmp_path}, in perf_tests there, or in"):
        choose_file("lab", None, tmp_path)
    file.write_text(FULL)
    with pytest.raises(ClusterFileError, match=rf"'workshp'\. Did you mean 'workshop'\?.* Read from {file}\."):
        choose_file("workshp", None, tmp_path)


@pytest.mark.parametrize(
    "backend, job, shared",
    [("local", None, [f"machine-{boot_id()}"]), ("slurm", None, []), ("slurm", "17", ["slurm-job-17"]), ("ec2", None, [])],
)
def test_allocations_share_local_and_job_hosts(
    monkeypatch: pytest.MonkeyPatch, backend: str, job: str | None, shared: list[str]
) -> None:
    """Allocations of this machine, and of the job that pytest runs in, are the same hosts; others have their own."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
    assert list(BACKENDS[backend].list_shared_machines(ClusterConfig(name="here", backend=backend))) == shared


DOCUMENT = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()


def rows(title: str) -> set[str]:
    """The keys in the table of a section of the reference."""
    section = DOCUMENT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def test_reference_has_every_key() -> None:
    """The reference's tables have the keys that are known, and no other."""
    assert rows("Common keys") == set(named.KEYS)
    for backend, row in BACKENDS.items():
        assert rows(f"Keys of `{backend}`") == set(row.keys)
    assert {each.name for each in fields(Limits)} <= set(re.findall(r"`(\w+_s)`", DOCUMENT))


def test_reference_example_is_read(file: Path) -> None:
    """The first example of the reference is a valid cluster file."""
    example, *_ = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    config = load(file, example)["alps"]
    assert capacity.count_devices(config) == 64
    assert capacity.get_worker_hosts(config, 4) == 4


def test_published_cluster_file_is_read() -> None:
    """The file beside the perf tests is right, and its Slurm cluster is the report's: 12 minutes, one GPU on each node."""
    daint = named.load(Path(__file__).parents[2] / "perf_tests" / "clusters.toml")["daint"]
    assert (capacity.count_devices(daint), capacity.predict_devices_per_host(daint), capacity.predict_device(daint)) == (
        128,
        1,
        "gpu",
    )
    assert (daint.backend_keys["constraint"], daint.backend_keys["time_limit"], daint.ps_on_worker_hosts) == (
        "gpu",
        "00:12:00",
        True,
    )


@pytest.mark.parametrize("job, expected", [(None, 512), ("2", 8)])
def test_cluster_inside_a_job_has_its_nodes(monkeypatch: pytest.MonkeyPatch, job: str | None, expected: int) -> None:
    """Inside a Slurm job the cluster has the devices of the job's nodes, independent of the nodes in the file."""
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_NUM_NODES", job)
    config = ClusterConfig(name="daint", backend="slurm", backend_keys={"nodes": 128}, devices_per_host=4)
    assert capacity.count_devices(config) == expected


@pytest.mark.parametrize(
    "resources, counts, hosts",
    [
        (Resources(8), None, 2),
        (Resources(9, 2), None, 5),
        (Resources(8, 1), {"8": 8}, 9),
        (Resources(16), {"8": 8}, 4),
    ],
)
def test_hosts(resources: Resources, counts: dict[str, int] | None, hosts: int) -> None:
    """The number of hosts is devices over devices per host, rounded up, unless the file sets it, plus separate hosts."""
    backend_keys = {"nodes_per_gpu_count": counts} if counts else {}
    config = ClusterConfig(name="x", backend="slurm", backend_keys=backend_keys, devices_per_host=4)
    assert capacity.count_hosts_for(config, resources) == hosts


TWO_WRONG = """
[local]
backend = "local"
devices_per_hosts = 2
dedicated = "no"

[local.training]
margin = 2

[other]
backend = "slrum"

[lab]
backend = "ssh"
hosts = ["a", "b"]
devices_per_host = 2
"""


def test_a_mistake_in_one_cluster_is_nothing_to_another(file: Path) -> None:
    """A cluster can be chosen from a file with other, invalid tables."""
    file.write_text(TWO_WRONG)
    assert named.choose("lab", file, [])[1].name == "lab"
    with pytest.raises(ClusterFileError, match=r"\[local\]"):
        named.choose("local", file, [])


def test_all_mistakes_of_a_file_are_reported_together(file: Path) -> None:
    """Each mistake of a file has a line of its own, with file, table and key."""
    file.write_text(TWO_WRONG)
    with pytest.raises(ClusterFileError) as caught:
        named.load(file)
    lines = str(caught.value).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [f"{file}:"] * 4
    expected = ["devices_per_hosts", "dedicated must be", "[local.training] margin", "[other]"]
    for line, words in zip(lines, expected, strict=True):
        assert words in line
