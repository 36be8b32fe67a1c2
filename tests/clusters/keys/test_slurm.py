"""The keys of a Slurm cluster in clusters.toml."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.slurm import keys as keys
from pytest_dtfperf.errors import ClusterFileError

FULL = """
partition = "normal"
account = "g34"
qos = "debug"
constraint = "gpu&ssd"
reservation = "tests"
nodes = 16
nodes_per_gpu_count = { 8 = 8, 16 = 4 }
include_nodes = "nid[0001-0008]"
exclude_nodes = "nid0003,nid0005"
switches = 1
exclusive = false
gpus_per_node = 4
cpus_per_node = 24
memory = "60G"
licenses = "scratch:2"
time_limit = "00:12:00"
max_pending = "2h"
options = ["--hint=nomultithread", "--mail-type", "END"]
setup = ["module load daint-gpu", "source '/apps/my env/bin/activate'"]
shared = "/scratch/me"
spool = "/tmp"
network = "trusted"
"""


class Load:
    """A cluster file with one Slurm cluster in it, read."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clusters.toml"

    def __call__(self, text: str) -> named.ClusterConfig:
        self._file.write_text(f'[x]\nbackend = "slurm"\n{text}')
        return named.load(self._file)["x"]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return Load(tmp_path)


def test_table_with_all_keys_is_valid(load: Load) -> None:
    """Every key of the table is valid, and reaches the backend unchanged."""
    output = tomllib.loads(FULL)
    assert {*output, "gres"} == set(keys.KEYS)
    assert load(FULL).backend_keys == output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"\[x\] must set how many devices a node has: gpus_per_node = 4, gres = "),
        ("gpus_per_node = 4\ngres = 'gpu:4'", r"has gres and gpus_per_node: one of them is enough"),
        ("gres = 'craynetwork:1'", "must set how many devices a node has"),
        ("gpus_per_node = 4\nnode = 3", r"unknown key 'node'. Did you mean 'nodes'\?"),
        ("gpus_per_node = 4\ntime_limit = '12m'", "time_limit must be a number of minutes or one of Slurm's .*, not '12m'"),
        ("gpus_per_node = 4\ntime_limit = '0'", "time_limit must be"),
        ("gpus_per_node = 4\ntime_limit = '00:00:00'", "time_limit must be"),
        ("gpus_per_node = 4\ntime_limit = 'UNLIMITED'", "time_limit must be"),
        ("gpus_per_node = 4\ntime_limit = 1.5", "time_limit must be"),
        ("gpus_per_node = 4\nmax_pending = 'a while'", r"max_pending must be a number of seconds or text like \"90s\""),
        ("gpus_per_node = 4\nmax_pending = '0s'", "max_pending must be"),
        ("gpus_per_node = 4\nnodes_per_gpu_count = { all = 3 }", "nodes_per_gpu_count must be a table of device counts"),
        ("gpus_per_node = 4\nnodes_per_gpu_count = { 8 = 0 }", "nodes_per_gpu_count must be"),
        ("gpus_per_node = 4\nnodes_per_gpu_count = { 16 = 3 }", r"nodes_per_gpu_count sets 3 nodes for 16 .* room for 12"),
        ("gpus_per_node = 4\nnodes = 4\nnodes_per_gpu_count = { 8 = 8 }", r"nodes_per_gpu_count sets 8 .* for 8 .*nodes = 4"),
        ("gpus_per_node = 4\nexclusive = 1", "exclusive must be true or false"),
        ("gpus_per_node = 4\nworkers_per_host = 3", r"workers_per_host = 3 must divide the 4 devices per host"),
        ("gpus_per_node = 4\noptions = ['--partition=debug']", "options .*'--partition=debug': use the key partition"),
        ("gpus_per_node = 4\noptions = ['-p', 'debug']", "options must not hold '-p': use the key partition"),
        ("gpus_per_node = 4\noptions = ['-pdebug']", "use the key partition"),
        ("gpus_per_node = 4\noptions = ['--parti=debug']", "use the key partition"),
        ("gpus_per_node = 4\noptions = ['--mem=0']", "use the key memory"),
        ("gpus_per_node = 4\noptions = ['--gpus-per-node=2']", "use the key gpus_per_node"),
        ("gpus_per_node = 4\noptions = ['--job-name=me']", "options must not hold '--job-name=me': the backend sets it"),
        ("gpus_per_node = 4\noptions = ['--array=1-3']", "the backend sets it, or cannot work with it"),
        ("gpus_per_node = 4\noptions = [':']", "jobs of several parts"),
        ("gpus_per_node = 4\ninclude_nodes = 'nid[1'", "include_nodes = 'nid\\[1' is no list of hosts"),
        ("gpus_per_node = 4\nexclude_nodes = 'a,,b'", "exclude_nodes = 'a,,b' is no list of hosts"),
        ("gpus_per_node = 4\ninclude_nodes = 'n1 n2'", "'n1 n2' is no list of hosts: no node is called 'n1 n2'"),
        ("gpus_per_node = 4\ninclude_nodes = 'n1, n2'", "no node is called ' n2'. Write node1,node2 or node"),
        ("gpus_per_node = 4\ninclude_nodes = 'n[1-2] '", "no node is called 'n1 '"),
        ("gpus_per_node = 4\nexclude_nodes = 'n{1,2}'", "no node is called 'n{1'"),
        ("gpus_per_node = 4\nexclude_nodes = 'n{1..2}'", "no node is called 'n{1..2}'"),
        ("gpus_per_node = 4\nexclude_nodes = 'n1;n2'", "no node is called 'n1;n2'"),
        ("gpus_per_node = 4\nexclude_nodes = 'n1\tn2'", "no node is called"),
        ("gpus_per_node = 4\nexclude_nodes = '/etc/nodes'", "no node is called '/etc/nodes'"),
        ("gpus_per_node = 4\nexclude_nodes = '-n1'", "no node is called '-n1'"),
        ("gres = 'gpu:4090'", "4090 GPUs of each node, and 64 are the most. If 4090 is their type, .*: \"gpu:4090:4\""),
        ("gres = 'gpu:4090'\ndevices_per_host = 2", "If 4090 is their type"),
        ("gres = 'shard:8,gpu:3090(S:0)'", "If 3090 is their type"),
        ("gres = 'gpu:a100:four'", "'gpu:a100:four' is no number of GPUs. Write \"gpu:4\" or"),
        ("gres = 'gpu:'", "'gpu:' is no number of GPUs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(load: Load, text: str, words: str) -> None:
    """An invalid table is refused before Slurm is contacted, with the key and what is allowed."""
    with pytest.raises(ClusterFileError, match=words):
        load(text)


@pytest.mark.parametrize(
    "option",
    ["--hint=nomultithread", "--mail-type=END", "-d", "--dependency=afterok:1", "--contiguous", "END", "--mem-bind=local"],
)
def test_other_options_are_the_users(load: Load, option: str) -> None:
    """Harmless options of sbatch that have no key of their own are passed on."""
    assert load(f"gpus_per_node = 4\noptions = ['{option}']").backend_keys["options"] == [option]


@pytest.mark.parametrize(
    "limit", ["12", "12:30", "00:12:00", "1-0", "1-12:30", "1-12:30:00", "100:00:00", 12]
)  # fmt: skip
def test_times_are_slurms(load: Load, limit: str | int) -> None:
    """Every format of a time that Slurm accepts is accepted."""
    assert load(f"gpus_per_node = 4\ntime_limit = {limit!r}").backend_keys["time_limit"] == limit


@pytest.mark.parametrize(
    ("output", "gpus"),
    [
        ({}, None),
        ({"gpus_per_node": 4}, 4),
        ({"gres": "gpu"}, 1),
        ({"gres": "gpu:4"}, 4),
        ({"gres": "gpu:p100:4"}, 4),
        ({"gres": "gpu:p100"}, 1),
        ({"gres": "gres/gpu:a100_80gb:8"}, 8),
        ({"gres": "gres:gpu:2"}, 2),
        ({"gres": "nvme:1,gpu:p100:4"}, 4),
        ({"gres": "gpu:v100:2,gpu:p100:2"}, 4),
        ({"gres": "craynetwork:1"}, None),
        ({"gres": "gpu:3090:4"}, 4),
        ({"gres": "gpu:2080ti:8"}, 8),
        ({"gres": "gpu:2080ti"}, 1),
        ({"gres": "gpu:1g.5gb:2"}, 2),
        ({"gres": "gpu:1g.5gb:2,gpu:3g.20gb:1"}, 3),
        ({"gres": "gpu:a100_1g.10gb+me:1"}, 1),
        ({"gres": "gpu:7g.80gb=3"}, 3),
        ({"gres": "gpu:a100:4(S:0,2),shard:40"}, 4),
        ({"gres": "shard:8"}, None),
        ({"gres": "mps:100"}, None),
    ],
)
def test_gpus_are_counted(output: dict[str, Any], gpus: int | None) -> None:
    """The number of GPUs per node follows from gpus_per_node or from any form of gres."""
    assert keys.get_gpus_per_node(output) == gpus


@pytest.mark.parametrize(
    ("output", "seconds"),
    [(90, 90), (1.5, 1.5), ("90s", 90), ("30m", 1800), ("2 h", 7200), ("1.5h", 5400), ("1d", 86400), ("x", None)],
)
def test_durations_are_seconds(output: str | float, seconds: float | None) -> None:
    """A duration is a number of seconds, or a number with its unit."""
    assert keys.parse_seconds(output) == seconds
