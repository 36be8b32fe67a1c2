"""Clusters by name: their configuration, the backends, and the checks of what clusters.toml contains.

[daint]                          # one table per cluster
backend = "slurm"                # which of BACKENDS allocates its hosts
partition = "normal"             # a key of this backend
nodes = 8
devices_per_host = 1             # a common key: KEYS
training = { warmup_steps = 10 } # defaults of its runs, below those of a test and the command line
models.inception3 = { batch_size = 64 }
"""

import importlib.util
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pytest_dtfperf import extensions
from pytest_dtfperf.clusters import file
from pytest_dtfperf.clusters.environment import ENVIRONMENT
from pytest_dtfperf.clusters.file import CODE, COMMAND, COUNT, FLAG, FRACTION, S3, SECONDS, TABLE, TEXT, TIME, Validator, one_of
from pytest_dtfperf.clusters.protocol import Allocation, Cluster, Resources
from pytest_dtfperf.errors import ClusterFileError, SpecError, UsageError, describe_unknown_name, show_value
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import MODELS, Spec
from pytest_dtfperf.spec.tables import is_own_model_name

OLDEST_PYTHON = (3, 11)  # that hosts may have


@dataclass(frozen=True)
class Limits:
    """The time limits of each part of a run, in seconds."""

    hello_s: float = 180.0  # an agent's start: importing TensorFlow from a cold network file system takes minutes
    reserve_s: float = 10.0  # to reserve the ports of all tasks
    ready_s: float = 120.0  # from the order to start until every task has bound its port
    first_step_s: float = 900.0  # to build and compile, and for the first step: long for a large model on a slow CPU
    progress_s: float = 300.0  # between two signs of progress of one worker, evaluation included
    leave_s: float = 20.0  # for the end of a parameter server after the workers
    stop_s: float = 10.0  # to end all tasks on a host
    silence_s: float = 10.0  # without a message of an agent, which sends one every second
    run_s: float = 6 * 3600.0  # for the whole run


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """One cluster, as clusters.toml describes it."""

    name: str
    backend: str = "local"  # source of the hosts: local, ssh, slurm, ec2, simulated, or one of another package
    file: Path | None = None  # where it is described; relative paths start in its folder
    backend_keys: Mapping[str, Any] = field(default_factory=dict)  # the keys of its backend
    devices_per_host: int | None = None  # devices of one host; not set: its number of GPUs, else 2, or 1 on a single core
    device: str | None = None  # device that computes; not set: "gpu" if there are GPUs
    devices_per_worker: int = 1  # devices of one worker process; a variable update of one process gives it all
    workers_per_host: int | None = None  # alternative to devices_per_worker: worker processes per host
    ps_on_worker_hosts: bool = True  # false: parameter servers are on separate hosts
    ps_per_host: int | None = None  # maximum number of parameter servers on one host; not set: evenly
    fixed_ports: bool = False  # true: port 2230 + index for a ps, 2220 + index for a worker, for firewalls
    start: str = "warm"  # "warm": tasks are forked from a process that has TensorFlow imported; "cold": each imports it
    container: str | None = None  # beginning of a command line that ends with an image: agents and tasks run in it
    container_python: str = "python3"  # interpreter in that image
    python: str | None = None  # interpreter of the hosts
    interface: str | None = None  # name of an interface, or a network: tasks use its address; not set: the backend's
    cache_dir: str | None = None  # folder on hosts for files between sessions; not set: $XDG_CACHE_HOME, else ~/.cache
    scratch_dir: str | None = None  # folder on hosts for temporary files; not set: $TMPDIR, else /tmp
    environment: Sequence[str] = ()  # additional variables for hosts: "NAME", "BEGINNING_*", "NAME=value"
    data: str | None = None  # "s3://bucket/prefix": copied to every host before the first run that reads it
    entry: str = "pytest_dtfperf.training.task:run"  # function of a task; another program may use the same protocol
    dedicated: bool = True  # false: other jobs run on these hosts, too, and do not taint a run
    heartbeat_timeout_s: float = 15.0  # seconds without a heartbeat after which hosts end all tasks
    allocation: str = "session"  # "session": hosts are allocated once for all tests; "test": for each measurement
    max_jobs: int | None = None  # maximum number of simultaneous allocations
    time_budget: str | None = None  # time for the measurements of a session, as "6min"; not set: no limit
    limits: Limits = field(default_factory=Limits)  # time limits of the parts of a run
    thresholds: str | None = None  # file in baselines/ with thresholds for systems without a file
    training: Mapping[str, Any] = field(default_factory=dict)  # defaults of all runs
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # defaults of the runs of one model

    @property
    def max_hosts(self) -> int | None:
        """The largest number of hosts, if the file sets one."""
        backend = BACKENDS[self.backend]
        found = backend.count_hosts(self)
        return 1 if found is None and backend.is_local else found

    @property
    def stated_devices_per_host(self) -> int | None:
        """The devices of each host, or else its GPUs, if the file sets one of them."""
        return self.devices_per_host or BACKENDS[self.backend].count_gpus(self.backend_keys) or None

    @property
    def folders(self) -> Mapping[str, str]:
        """The environment variables of hosts that name folders, by name. Values may contain other variables of the host."""
        found = {}
        if self.cache_dir:  # CUDA's cache of compiled kernels is in the home folder otherwise
            found = {"XDG_CACHE_HOME": self.cache_dir, "CUDA_CACHE_PATH": f"{self.cache_dir}/cuda"}
        return {**found, "TMPDIR": self.scratch_dir} if self.scratch_dir else found

    @property
    def most_ps_per_host(self) -> int | None:
        """The largest number of parameter servers per host; None: they are spread evenly."""
        return self.ps_per_host or (None if self.ps_on_worker_hosts else 1)

    @property
    def jobs_at_once(self) -> int:
        """The number of allocations that the sessions of one user may hold at the same time."""
        return self.max_jobs or BACKENDS[self.backend].max_jobs


class Backend:
    """A way to allocate hosts: the keys of its clusters, the properties of hosts that are known before, and the allocation.

    A subclass sets the attributes that differ and defines `open_cluster`. Methods start nothing unless documented.
    """

    keys: Mapping[str, Validator] = {}  # of this backend only
    hosts_key: str | None = None  # the key with the number of hosts
    cores_key: str | None = None  # the key with the number of cores that a host allocates
    spread_key: str | None = None  # the key of a table of device counts, and how many hosts each is spread over
    device: str = "cpu"  # of hosts with an unknown number of GPUs
    is_local: bool = False  # its hosts are this machine
    is_simulated: bool = False  # its hosts train nothing: what they report is marked, and compared only with itself
    is_firewalled: bool = False  # its network blocks other hosts' connections where a host has no firewall of its own
    python: str | None = None  # of the hosts; None: this interpreter, which they have, too
    requires: tuple[str, str] | None = None  # a module, and the extra of this package that installs it
    max_jobs: int = 1  # default number of allocations at the same time
    limits: Limits = Limits()  # default time limits of the parts of a run

    def open_cluster(self, config: ClusterConfig) -> Cluster:
        """Return the cluster, from which hosts can be allocated."""
        raise NotImplementedError

    @property
    def can_share_hosts(self) -> bool:
        """Whether `share_hosts` is possible."""
        return type(self).share_hosts is not Backend.share_hosts

    def share_hosts(self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()) -> Allocation:
        """Return the hosts of an allocation for agents of another software stack, beside its own agents.

        Args:
            config: the cluster with the stack: another `python`, `environment`, `container` or `setup`.
            without: hosts that are left out.

        Raises:
            UsageError: the backend cannot do so.
        """
        raise UsageError(f"cluster {config.name}: {config.backend} cannot start several software stacks on the same hosts")

    def check_stack(self, config: ClusterConfig) -> None:
        """Check a software stack before hosts are allocated, as far as that is possible. Raises `ClusterFileError`."""

    def validate(self, table: Mapping[str, Any]) -> str | None:
        """Return the first conflict between keys that are valid on their own; None if there is none."""
        return None

    def select_hosts(self, config: ClusterConfig, names: str) -> ClusterConfig | None:
        """Return the cluster with only the hosts of a list such as "node03,node07"; None: hosts have no names beforehand.

        Raises `UsageError` for an unknown name or a list that cannot be read.
        """
        return None

    def list_hosts(self, config: ClusterConfig) -> Sequence[str]:
        """Return the names of all hosts that `select_hosts` accepts; none if they are not known before an allocation."""
        return ()

    def count_hosts(self, config: ClusterConfig) -> int | None:
        """Return the number of hosts in the cluster file; None if it has none. Raises `ClusterFileError`."""
        return config.backend_keys.get(self.hosts_key) if self.hosts_key else None

    def count_allocated_hosts(self) -> int | None:
        """Return the number of hosts of the allocation in which this process runs; None outside of one."""
        return None

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        """Return the number of GPUs of each host; None if unknown."""
        return None

    def get_lifetime_s(self, backend_keys: Mapping[str, Any]) -> float | None:
        """Return the longest lifetime of an allocation in seconds; None if the keys set no limit."""
        return None

    def list_commands(self, config: ClusterConfig, resources: Resources) -> Sequence[str]:
        """Return the shell commands that allocate and use such hosts, for display; none if there are none."""
        return ()

    def list_shared_machines(self, config: ClusterConfig) -> Sequence[str]:
        """Return the machines that all allocations share, by names of their own: measurements must take turns on them.

        None: each allocation has hosts of its own. Raises `ClusterFileError`.
        """
        return ()

    def find_exposure(self, config: ClusterConfig) -> str | None:
        """Return a warning if other users can reach the training there; None otherwise."""
        return None


class _ImportedRows(dict[str, Any]):
    """Backends by name. Each is imported from its "module:Class" at its first use."""

    def __getitem__(self, name: str) -> Backend:
        row = super().__getitem__(name)
        if isinstance(row, str):
            row = self[name] = extensions.load(row)()
        found: Backend = row
        return found


# The "module:Class" of each, so that the table imports no backend.
_IMPLEMENTATIONS: Mapping[str, str] = {
    "local": "pytest_dtfperf.clusters.local:LocalBackend",
    "ssh": "pytest_dtfperf.clusters.ssh.cluster:SshBackend",
    "slurm": "pytest_dtfperf.clusters.slurm.cluster:SlurmBackend",
    "ec2": "pytest_dtfperf.clusters.ec2.backend:Ec2Backend",
    "simulated": "pytest_dtfperf.simulated.backend:SimulatedBackend",
}

# Includes the backends of other installed packages: docs/extending.md.
BACKENDS: extensions.Table[Backend] = extensions.Table("pytest_dtfperf.backends", Backend, {})
BACKENDS.data = _ImportedRows(_IMPLEMENTATIONS)


# The keys that every cluster has.
KEYS: Mapping[str, Validator] = {
    "backend": TEXT,
    "devices_per_host": COUNT,
    "device": one_of("cpu", "gpu"),
    "devices_per_worker": COUNT,
    "workers_per_host": COUNT,
    "ps_on_worker_hosts": FLAG,
    "ps_per_host": COUNT,
    "fixed_ports": FLAG,
    "start": one_of("warm", "cold"),
    "python": TEXT,
    "container": COMMAND,
    "container_python": TEXT,
    "interface": file.INTERFACE,
    "cache_dir": file.FOLDER,
    "scratch_dir": file.FOLDER,
    "environment": ENVIRONMENT,
    "data": S3,
    "entry": CODE,
    "dedicated": FLAG,
    "heartbeat_timeout_s": SECONDS,
    "allocation": one_of("session", "test"),
    "max_jobs": COUNT,
    "time_budget": TIME,
    "limits": TABLE,
    "thresholds": TEXT,
    "training": TABLE,
    "models": TABLE,
}


# Keys of `training` and `models.<name>`: a spec's fields, and the measurement's settings.
MEASURING_KEYS: Mapping[str, Validator] = {"repeats": COUNT, "min_repeats": COUNT, "margin": FRACTION}
TRAINING_KEYS = (*(each.name for each in fields(Spec) if each.name not in ("model", "own_model")), *MEASURING_KEYS)


def load(path: str | Path | None) -> dict[str, ClusterConfig]:
    """Load all clusters of a file, and `local` in any case. Raises `ClusterFileError` with all errors."""
    clusters = {"local": ClusterConfig(name="local")}
    problems = []
    for name, table in (file.read_cluster_file(path) if path else {}).items():
        try:
            clusters[name] = _parse(str(path), name, table)
        except ClusterFileError as problem:
            problems.append(str(problem))
    if problems:
        raise ClusterFileError("\n".join(problems))
    return clusters


def choose(name: str, explicit: str | Path | None, starts: Iterable[str | Path]) -> tuple[Path | None, ClusterConfig]:
    """Return the cluster of that name, and the file that describes it; None: the defaults, without a file.

    Used for `--cluster` and `--clusters-file`, with pytest and without. `starts`: the folders of the
    tests, or the current folder of a command. Raises `ClusterFileError`.
    """
    starts = list(starts)
    path = file.find_cluster_file(explicit, starts)
    tables = file.read_cluster_file(path) if path else {}
    if name not in {"local", *tables}:
        where = f"Read from {path}." if path else f"{file.format_searched(starts).capitalize()}: name one with --clusters-file."
        raise ClusterFileError(
            f"--cluster: {describe_unknown_name('cluster', name, dict.fromkeys(['local', *tables]))} {where}"
        )
    for other, table in tables.items():
        if not isinstance(table, dict):  # the file describes no clusters, and may belong to another program
            _parse(str(path), other, table)
    # An error in the table of another cluster does not affect this one.
    config = _parse(str(path), name, tables[name]) if name in tables else ClusterConfig(name=name)
    return path, pick({name: config}, name)


def make_cluster_options(config: ClusterConfig) -> list[str]:
    """Return the options with which a command in the current folder finds the cluster."""
    found = file.find_cluster_file(None, ["."])
    if config.file is None or (found and os.path.abspath(found) == str(config.file)):
        return [f"--cluster={config.name}"]
    return [f"--cluster={config.name}", f"--clusters-file={os.path.relpath(config.file)}"]


def pick(clusters: Mapping[str, ClusterConfig], name: str) -> ClusterConfig:
    """Return the cluster of that name if it can be used. Raises `ClusterFileError`."""
    if name not in clusters:
        raise ClusterFileError(describe_unknown_name("cluster", name, clusters))
    config = clusters[name]
    requires = BACKENDS[config.backend].requires
    if requires and importlib.util.find_spec(requires[0]) is None:
        raise ClusterFileError(
            f'cluster {name!r} needs {requires[0]}, which is not installed: pip install "pytest-dtfperf[{requires[1]}]"'
        )
    config.max_hosts  # noqa: B018 - reads the files that the cluster names, while a mistake is still one line
    return config


def check_tensorflow(config: ClusterConfig, device: str) -> None:
    """Raise `ClusterFileError` if this interpreter is to train and lacks TensorFlow. Other hosts are checked once allocated."""
    trains_here = BACKENDS[config.backend].is_local and config.python is None and config.entry == ClusterConfig.entry
    if trains_here and importlib.util.find_spec("tensorflow") is None:
        extra = "cuda" if device == "gpu" else "tensorflow"
        raise ClusterFileError(
            f"cluster {config.name!r} trains with {sys.executable}, which has no TensorFlow: "
            f'pip install "pytest-dtfperf[{extra}]"'
        )


def open_cluster(config: ClusterConfig) -> Cluster:
    """Return the cluster itself. Nothing is allocated or started yet."""
    return BACKENDS[config.backend].open_cluster(config)


def get_python(config: ClusterConfig) -> str:
    """Return the interpreter that starts agents on the hosts."""
    return config.python or BACKENDS[config.backend].python or sys.executable


def _parse(path: str, name: str, table: object) -> ClusterConfig:
    where = f"{path}: [{file.quote_key(name)}]"
    if not isinstance(table, dict):
        raise ClusterFileError(f"{where} must be a table, not {show_value(table)}")
    if "backend" not in table:
        raise ClusterFileError(f"{where} lacks its backend. Known: {', '.join(sorted(BACKENDS))}.")
    _raise_all(_find_problems(where, {"backend": table["backend"]}, KEYS))
    if table["backend"] not in BACKENDS:
        raise ClusterFileError(f"{where} {describe_unknown_name('backend', table['backend'], BACKENDS)}")
    backend = BACKENDS[table["backend"]]
    inner = (table.get(key, {}) for key in ("limits", "training", "models"))
    limits, training, models = (each if isinstance(each, dict) else {} for each in inner)  # KEYS reports other types
    _raise_all(
        [
            *_find_problems(where, table, {**KEYS, **backend.keys}),
            *_find_problems(
                f"{path}: [{file.quote_key(name)}.limits]", limits, {each.name: SECONDS for each in fields(Limits)}
            ),
            *_find_training_problems(path, file.quote_key(name), training, models),
        ]
    )
    common = {key: value for key, value in table.items() if key in KEYS}
    common["limits"] = replace(backend.limits, **limits)
    backend_keys = {key: value for key, value in table.items() if key in backend.keys}
    config = ClusterConfig(name=name, file=Path(path).absolute(), backend_keys=backend_keys, **common)
    if problem := backend.validate(table) or _find_conflict(config, table):
        raise ClusterFileError(f"{where} {problem}")
    return config


def _find_conflict(config: ClusterConfig, table: Mapping[str, Any]) -> str | None:
    """Return the first conflict between keys that are valid on their own; None if there is none."""
    if config.interface and BACKENDS[config.backend].is_local:
        return "has interface, but tasks of one machine use its loopback interface: leave interface out"
    if config.scratch_dir and "spool" in table:
        return "has spool and scratch_dir, which are the same: only one of them is allowed"
    if config.interface and "private_address" in table:
        return "has interface and private_address: only one of them may set the addresses of tasks"
    workers = config.workers_per_host
    if workers is None:
        return None
    if "devices_per_worker" in table:
        return f"has workers_per_host = {workers} and devices_per_worker = {config.devices_per_worker}: only one is allowed"
    on_each = config.stated_devices_per_host
    if on_each is None:
        return f"workers_per_host = {workers} needs devices_per_host, to share them out"
    if on_each % workers:
        return f"workers_per_host = {workers} must divide the {format_count(on_each, 'device')} per host"
    return None


def _raise_all(problems: Iterable[str]) -> None:
    """Raise `ClusterFileError` with a line for each problem, if there is one."""
    if found := list(problems):
        raise ClusterFileError("\n".join(found))


def _find_problems(where: str, table: Mapping[str, Any], kinds: Mapping[str, Validator]) -> Iterator[str]:
    for key, value in table.items():
        if key not in kinds:
            yield f"{where} {describe_unknown_name('key', key, kinds)}"
        elif not kinds[key].accepts(value):
            yield f"{where} {key} must be {kinds[key].allowed}, not {show_value(value)}"


def _find_training_problems(path: str, name: str, training: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[str]:
    yield from _find_setting_problems(f"{path}: [{name}.training]", training)
    for model, settings in models.items():
        if model not in MODELS and not is_own_model_name(model):
            yield f"{path}: [{name}.models] {describe_unknown_name('model', model, MODELS)}"
        elif not isinstance(settings, dict):
            yield f"{path}: [{name}.models.{model}] must be a table, not {show_value(settings)}"
        else:
            yield from _find_setting_problems(f"{path}: [{name}.models.{model}]", settings)


def _find_setting_problems(where: str, settings: Mapping[str, Any]) -> Iterator[str]:
    for key, value in settings.items():
        if key not in TRAINING_KEYS:
            yield f"{where} {describe_unknown_name('key', key, TRAINING_KEYS)}"
        elif key in MEASURING_KEYS:
            yield from _find_problems(where, {key: value}, MEASURING_KEYS)
        else:
            try:
                Spec.check_field(key, tuple(value) if isinstance(value, list) else value)
            except SpecError as exc:
                yield f"{where} {exc}"
