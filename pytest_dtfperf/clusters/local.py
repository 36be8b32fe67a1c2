"""This machine as a cluster of one host, or of several simulated hosts, each with its part of the cores."""

import hashlib
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest_dtfperf
from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import Child, ChildrenChannel, sweep_machine
from pytest_dtfperf.clusters.environment import select_variables
from pytest_dtfperf.clusters.file import COUNT, Validator, one_of
from pytest_dtfperf.clusters.locks import make_runtime_folder
from pytest_dtfperf.clusters.named import OLDEST_PYTHON, Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.errors import AllocationError, ClusterFileError
from pytest_dtfperf.node import boot, isolation, sweep
from pytest_dtfperf.node.container import ContainerError, make_command
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.node.owner import Owner, boot_id

ADDRESS = "127.0.0.1"
CHECK_S = 60.0  # of starting an interpreter from a cold network file system


class _NotIsolated(Exception):
    """This machine does not let this user have an isolated network. The text gives the reason."""


def get_machine() -> list[str]:
    """Return this machine's name, independent of cluster names: the same for all its users and containers."""
    return [f"machine-{boot_id() or socket.gethostname()}"]


class LocalBackend(Backend):
    """This machine."""

    keys: Mapping[str, Validator] = {"hosts": COUNT, "network": one_of("host")}
    hosts_key = "hosts"
    is_local = True

    def open_cluster(self, config: ClusterConfig) -> "Local":
        return Local(config)

    def share_hosts(self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()) -> "LocalAllocation":
        assert isinstance(allocation, LocalAllocation)
        return allocation.copy_with(_make_environment(config), isolated=not config.container, without=without)

    def check_stack(self, config: ClusterConfig) -> None:
        if config.container:
            _check_container(config)
        elif config.python:
            _check_interpreter(config)

    def list_shared_machines(self, config: ClusterConfig) -> Sequence[str]:
        return get_machine()

    def find_exposure(self, config: ClusterConfig) -> str | None:
        """Try to make an isolated network, and return why that failed."""
        try:
            with _make_isolation(config):
                return None
        except _NotIsolated as exc:
            return f"NOT ISOLATED: {exc}, so every host that reaches its ports reaches the training (docs/security.md)"


class Local:
    """A cluster of this machine, which is always there."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or devices_per_host")
        sweep_machine(abandoned=True)
        name = socket.gethostname()
        hosts = [Host(f"{name}-{i}" if wanted > 1 else name, ADDRESS) for i in range(wanted)]
        with _open_network(self._config) as network:
            yield LocalAllocation(hosts, network, self._config.environment, _make_folders(self._config.folders))


class LocalAllocation:
    """This machine as one or several hosts. `network` are the files of a network for its tasks only, if there is one."""

    def __init__(
        self,
        hosts: Sequence[Host],
        network: Sequence[int] = (),
        environment: Sequence[str] = (),
        folders: Mapping[str, str] | None = None,
    ) -> None:
        """Take `environment` as in clusters.toml; `folders` are variables with values."""
        self.hosts = hosts
        self._network = network
        self._environment = environment
        self._folders = folders or {}

    def copy_with(self, environment: Sequence[str], *, isolated: bool, without: Collection[str] = ()) -> "LocalAllocation":
        """Return the same hosts, but some, with other variables, and without the tasks' network unless `isolated`."""
        hosts = [host for host in self.hosts if host.name not in without]
        return LocalAllocation(hosts, self._network if isolated else (), environment, self._folders)

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        session = uuid.uuid4().hex
        # The whole environment of this process: a process that can read the agents' environment can read this one's, too.
        inherited = {**os.environ, **self._folders}
        env = {
            **select_variables(inherited, ["*"], self._environment),
            sweep.SESSION: session,
            sweep.OWNER: Owner.read_own().text,
        }
        if self._network:
            env[isolation.FILES] = " ".join(map(str, self._network))
        agents: list[Child] = []
        try:
            for host, cores in enumerate(_share_cores(sorted(os.sched_getaffinity(0)), len(self.hosts))):
                with _pin_to_cores(cores):
                    agents.append(Child(host, argv, env, self._network))
        except OSError as exc:
            for agent in agents:
                agent.hang_up()
                agent.end(0.0)
            raise AllocationError(f"cannot start {argv[0]}: {exc}") from exc
        return ChildrenChannel(
            agents, empty_message="no agent is left on this machine", clean_up=partial(sweep_machine, [session])
        )


def _make_folders(folders: Mapping[str, str]) -> dict[str, str]:
    """Make folders that are missing, and return them by variable. Raises `AllocationError`."""
    try:
        return boot.make_folders(dict(folders))
    except OSError as exc:
        raise AllocationError(
            f"{exc.filename} cannot be used: {exc.strerror}. Correct cache_dir or scratch_dir in clusters.toml"
        ) from exc


_NEEDED = "3.11 or newer"
_REPORT = "import importlib.util as u, sys; print(*sys.version_info[:2], bool(u.find_spec('tensorflow')))"


def _check_container(config: ClusterConfig) -> None:
    """Raise `ClusterFileError` if a container does not start its interpreter on this machine."""
    python, environment = config.container_python, select_variables(os.environ, ["*"], config.environment)
    try:
        argv = make_command(str(config.container), [python, "-P", "-c", _REPORT], environment)
        found = _run_check(argv, environment)
    except (ContainerError, OSError, subprocess.TimeoutExpired) as exc:
        raise ClusterFileError(f"container: {exc}") from exc
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        raise ClusterFileError(
            f"container: {config.container} does not start {python}: {reason}. Correct container or container_python"
        )


def _run_check(argv: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=CHECK_S,
        check=False,
    )


def _check_interpreter(config: ClusterConfig) -> None:
    """Raise `ClusterFileError` if an interpreter of this machine cannot train."""
    python = str(config.python)
    try:
        found = _run_check([python, "-P", "-c", _REPORT], select_variables(os.environ, ["*"], config.environment))
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ClusterFileError(f"python: {python} cannot be started: {exc}") from exc
    printed = found.stdout.split()
    if found.returncode or len(printed) != 3:  # -P is unknown before 3.11
        raise ClusterFileError(f"python: {python} does not run as Python {_NEEDED} does. Name another one")
    if tuple(map(int, printed[:2])) < OLDEST_PYTHON:
        raise ClusterFileError(f"python: {python} is Python {'.'.join(printed[:2])}: {_NEEDED} is needed")
    if printed[2] != "True" and config.entry == ClusterConfig.entry:
        raise ClusterFileError(f"python: {python} has no TensorFlow: {python} -m pip install tensorflow")


def _make_environment(config: ClusterConfig) -> Sequence[str]:
    """Return the stack's variables. Another interpreter than this one finds this package by PYTHONPATH, and nothing else."""
    if not config.python or config.container:
        return config.environment
    package = Path(pytest_dtfperf.__file__).parent
    folder = make_runtime_folder() / f"package-{hashlib.sha256(os.fsencode(package)).hexdigest()[:16]}"
    try:
        folder.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (folder / package.name).symlink_to(package)
    except OSError as exc:
        raise AllocationError(f"{folder} cannot be made: {exc.strerror}") from exc
    given = select_variables(os.environ, ["PYTHONPATH"], config.environment).get("PYTHONPATH")
    return [*config.environment, f"PYTHONPATH={os.pathsep.join(filter(None, [str(folder), given]))}"]


@contextmanager
def _open_network(config: ClusterConfig) -> Iterator[Sequence[int]]:
    """Yield the files of a network for the tasks of one allocation; none if it is impossible or not wanted."""
    with ExitStack() as until_given_back:
        try:
            files = until_given_back.enter_context(_make_isolation(config))
        except _NotIsolated:  # `find_exposure` has reported it
            files = ()
        yield files


@contextmanager
def _make_isolation(config: ClusterConfig) -> Iterator[Sequence[int]]:
    """Yield the same. Raises `_NotIsolated` if it is impossible."""
    if "network" in config.backend_keys:
        yield ()
        return
    if config.container:
        raise _NotIsolated("tasks in a container cannot enter a network of their own")
    try:
        files = isolation.make_in_thread() or _make_in_process()
    except isolation.IsolationUnavailable as exc:
        raise _NotIsolated(str(exc)) from exc
    with ExitStack() as closing:
        for file in files:
            closing.callback(os.close, file)
            os.set_inheritable(file, False)
        yield files


def _make_in_process() -> Sequence[int]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            made = subprocess.run(
                make_module_command(sys.executable, isolation.__name__, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=[theirs.fileno()],
                check=False,
            )
        if made.returncode:
            raise isolation.IsolationUnavailable(made.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        return socket.recv_fds(ours, 16, len(isolation.NAMESPACES))[1]


def _share_cores(cores: Sequence[int], hosts: int) -> list[list[int]]:
    """Return each host's cores. With fewer cores than hosts, some share one."""
    size = max(1, len(cores) // hosts)
    return [list(cores) if hosts == 1 else [cores[(i * size + k) % len(cores)] for k in range(size)] for i in range(hosts)]


@contextmanager
def _pin_to_cores(cores: Sequence[int]) -> Iterator[None]:
    """Make processes that this thread starts in the block run on these cores."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
