"""The SSH backend: its hosts exist already, so an allocation connects to them and checks them.

Connections are opened in parallel: to all or none for a training, to as many as possible to clean up.

    ssh -- script --> sh -- set-up lines --> python <-- header, bundle -- supervisor <-- orders: "sweep", "run"
"""

import ipaddress
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.environment import TRAINING, select_variables
from pytest_dtfperf.clusters.named import Backend, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Host, Resources
from pytest_dtfperf.clusters.ssh import bootstrap, endpoints, keys
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.clusters.ssh.keys import KEYS
from pytest_dtfperf.clusters.ssh.ssh_process import Cancelled, CancelToken, HostRefusal, SshProcess, TransientError, Unreachable
from pytest_dtfperf.errors import AllocationError, AllocationOver, group_reasons
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.messages.programs import HostSurvey
from pytest_dtfperf.node.owner import Fate, Owner
from pytest_dtfperf.node.retry import retry

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.3, 2.25  # before another try at a host that was too busy to answer
_STATUS_S = 0.5
_OTHERS_S = 1.0  # after a host has failed, so that others which fail for the same reason are reported with it
_START_S = 30.0  # from the order to start a command to its start, on a host that has answered before


def open_process(
    handshake: Handshake, index: int, endpoint: Endpoint, token: CancelToken, stages: MutableMapping[str, str] | None = None
) -> SshProcess:
    """Connect to a host, and return once its supervisor waits for orders. Raises `Unreachable` if it fails or is too late.

    Until then, `stages` shows the host's current step under its name.
    """
    deadline = time.monotonic() + handshake.limit_s

    def connect() -> SshProcess:
        process = _start(handshake, index, endpoint, {} if stages is None else stages)
        try:
            process.shake_hands(deadline, token)
        except BaseException:
            process.let_go()
            raise
        return process

    try:
        return retry(
            connect,
            TransientError,
            within_s=handshake.limit_s,
            first_pause_s=_FIRST_PAUSE_S,
            longest_pause_s=_LONGEST_PAUSE_S,
            spread=1 / 3,
            sleep=lambda pause_s: token.wait([], pause_s),
        )
    except TransientError as exc:
        raise Unreachable(f"{exc}, again and again for {handshake.limit_s:g} s", host=endpoint.name) from None


def _start(handshake: Handshake, index: int, endpoint: Endpoint, stages: MutableMapping[str, str]) -> SshProcess:
    try:
        return SshProcess(index, endpoint, handshake, stages)
    except OSError as exc:
        hint = ". Hint: install OpenSSH's client" if exc.filename == "ssh" else ""  # else no file or process can be created
        raise Unreachable(f"cannot start ssh: {exc.strerror or exc}{hint}") from exc


def open_processes(
    handshake: Handshake, endpoints: Sequence[tuple[int, Endpoint]], on_status: Callable[[str], object] = lambda status: None
) -> list[SshProcess]:
    """Connect to all hosts or none: if one cannot be reached, the other connections are closed.

    Raises:
        Unreachable: hosts cannot be reached: all that have failed until a moment after the first one.
    """
    lines: list[Future[SshProcess]] = []
    stages: dict[str, str] = {}
    with CancelToken() as token, ThreadPoolExecutor(handshake.parallel, "dtfperf-ssh") as pool:
        try:
            lines = [pool.submit(open_process, handshake, index, endpoint, token, stages) for index, endpoint in endpoints]
            waiting, reported = set(lines), ""
            while waiting:
                done, waiting = wait(waiting, _STATUS_S, FIRST_EXCEPTION)
                if any(each.exception() for each in done):
                    wait(waiting, _OTHERS_S)
                    _raise_failures([each for each in lines if each.done()])
                status = _format_progress(len(waiting), stages)
                if waiting and stages and status != reported:
                    on_status(reported := status)
            return [each.result() for each in lines]
        except BaseException:  # Ctrl-C too: no caller has the connections yet
            token.cancel()
            pool.shutdown(cancel_futures=True)
            for each in lines:
                if not each.cancelled() and not each.exception():
                    each.result().let_go()
            raise


def _raise_failures(ended: Sequence[Future[SshProcess]]) -> None:
    """Raise the error of the host that failed, or one error for all hosts that failed."""
    errors = [error for each in ended if (error := each.exception())]
    reasons = {error.host: str(error) for error in errors if isinstance(error, Unreachable) and error.host}
    if len(reasons) < len(errors) or len(errors) == 1:
        raise errors[0]
    grouped = group_reasons(reasons)
    texts = [reason + (f" (likewise {', '.join(others)})" if others else "") for reason, (_, *others) in grouped.items()]
    raise Unreachable("; ".join(texts), reasons=reasons)


def _format_progress(waiting: int, stages: Mapping[str, str]) -> str:
    """Describe the current step of the hosts that are not ready, by the example of one."""
    name, stage = next(iter(dict(stages).items()), ("", ""))
    return f"waiting for {format_count(waiting, 'host')}" + (f": {name} is at {stage}" if name else "")


def start_on_all(lines: Sequence[SshProcess], argv: Sequence[str], env: Mapping[str, str], **limits: float | None) -> None:
    """Start a command on every host, and wait until it runs. Raises `Unreachable`; then all connections are closed."""
    try:
        for line in lines:
            order = {"argv": list(argv), "env": {**env, "DTFPERF_HOST_INDEX": str(line.host)}, **limits}
            line.order({"run": order})
        with CancelToken() as token:
            deadline = time.monotonic() + _START_S
            for line in lines:
                line.receive_answer(deadline - time.monotonic(), token)
    except BaseException:
        for line in lines:
            line.let_go()
        raise


def sweep_idle(lines: Sequence[tuple[SshProcess, Sequence[str]]], within_s: float) -> None:
    """End what these sessions have left on the hosts of idle connections."""
    for line, sessions in lines:
        line.order({"sweep": list(sessions)})
    deadline = time.monotonic() + within_s
    with CancelToken() as token:
        for line, _ in lines:
            with suppress(Unreachable):
                line.receive_answer(deadline - time.monotonic(), token)


def sweep_hosts(
    config: ClusterConfig, endpoints: Sequence[tuple[int, Endpoint]], sessions: Sequence[str], within_s: float
) -> None:
    """End what these sessions have left on these hosts, if they can be reached in that time."""
    handshake = Handshake.from_config(config, limit_s=within_s)

    def one(index: int, endpoint: Endpoint, token: CancelToken) -> None:
        with suppress(Unreachable, Cancelled):
            line = open_process(handshake, index, endpoint, token)
            try:
                line.order({"sweep": list(sessions)})
                line.receive_answer(within_s, token)
            finally:
                line.let_go()

    with CancelToken() as token, ThreadPoolExecutor(handshake.parallel, "dtfperf-ssh") as pool:
        for each in [pool.submit(one, index, endpoint, token) for index, endpoint in endpoints]:
            each.result()


def find_address(endpoint: Endpoint, survey: HostSurvey, backend_keys: Mapping[str, Any]) -> str:
    """Return the address by which tasks reach a host: that of the cluster file, else the one that this controller used.

    Behind a gateway that translates addresses, it is the address that the host itself reports.
    """
    if endpoint.address:
        return endpoint.address
    network = keys.parse_network(backend_keys.get("private_address"))
    if network is None:
        return survey.reached_at or survey.hostname
    for candidate in survey.addresses:
        if ipaddress.ip_address(candidate) in network:
            return candidate
    raise AllocationError(
        f'host {endpoint.name} has no address in private_address = "{network}", only '
        f"{', '.join(survey.addresses) or 'that of its loopback'}. "
        "Correct the network in clusters.toml, or set each host's address in a table"
    )


def get_controller_id() -> str:
    """Return the id of this process that marks everything it starts on hosts."""
    return Owner.read_own().text


def find_abandoned_sessions(left: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the sessions of controllers that have certainly ended. Controllers elsewhere cannot be checked from here."""
    owners = [(Owner.parse(text), sessions) for text, sessions in left.items()]
    return [session for owner, sessions in owners if owner and owner.fate is Fate.GONE for session in sessions]


LEAVE_S = 5.0  # covers the way to the host, the agent's exit or the supervisor's timeout, and the way back
SWEEP_S = 8.0
# As in node/sweep.py and node/supervisor.py.
SESSION, OWNER, CONTROLLER = "DTFPERF_SESSION", "DTFPERF_OWNER", "DTFPERF_CONTROLLER"


class SshBackend(Backend):
    """The backend for hosts that SSH reaches."""

    keys = KEYS
    python = "python3"

    def open_cluster(self, config: ClusterConfig) -> "Ssh":
        return Ssh(config)

    def validate(self, table: Mapping[str, Any]) -> str | None:
        return keys.validate(table)

    def share_hosts(self, allocation: Allocation, config: ClusterConfig, without: Collection[str] = ()) -> "SshAllocation":
        assert isinstance(allocation, SshAllocation)
        return allocation.copy_with(config, without)

    def select_hosts(self, config: ClusterConfig, names: str) -> ClusterConfig:
        return endpoints.select_hosts(config, names)

    def list_hosts(self, config: ClusterConfig) -> Sequence[str]:
        return [each.name for each in endpoints.list_endpoints(config)]

    def count_hosts(self, config: ClusterConfig) -> int | None:
        """Return the number of hosts. Reads the files that the cluster names, too."""
        return endpoints.count_hosts(config)

    def count_gpus(self, backend_keys: Mapping[str, Any]) -> int | None:
        gpus: int | None = backend_keys.get("gpus_per_host")
        return gpus

    def list_commands(self, config: ClusterConfig, resources: Resources) -> Sequence[str]:
        return endpoints.list_commands(config, resources)

    def list_shared_machines(self, config: ClusterConfig) -> Sequence[str]:
        return endpoints.list_machines(config)


class Ssh:
    """The hosts of a cluster file, to allocate."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        wanted = require_hosts(self._config, resources, "hosts or gpus_per_host")
        with open_allocation(self._config, endpoints.list_endpoints(self._config)[:wanted], resources) as allocation:
            yield allocation


@contextmanager
def open_allocation(config: ClusterConfig, endpoints: Sequence[Endpoint], resources: Resources) -> Iterator["SshAllocation"]:
    """Allocate all these hosts. Raises `AllocationError`."""
    resources.on_status(f"connecting to {', '.join(endpoint.name for endpoint in endpoints)}")
    try:
        lines = open_processes(Handshake.from_config(config, survey=True), list(enumerate(endpoints)), resources.on_status)
    except Unreachable as exc:
        raise AllocationError(str(exc), hosts=exc.hosts, reasons=exc.reasons) from exc
    allocation = SshAllocation(config, endpoints, lines)
    try:
        allocation.take_over()
        yield allocation
    finally:
        allocation.close()


class SshAllocation:
    """Hosts that have answered. Their connections are kept for the first start: a handshake takes longer than a start."""

    def __init__(self, config: ClusterConfig, endpoints: Sequence[Endpoint], lines: Sequence[SshProcess]) -> None:
        self._config = config
        self._endpoints = endpoints
        self._idle = list(lines)
        self.hosts: Sequence[Host] = ()

    def take_over(self) -> None:
        """Read the hosts' addresses, and end what dead controllers have left on them."""
        surveys = [(line, line.survey) for line in self._idle if line.survey]
        self.hosts = [
            Host(line.endpoint.name, find_address(line.endpoint, survey, self._config.backend_keys)) for line, survey in surveys
        ]
        left = [(line, find_abandoned_sessions(survey.left)) for line, survey in surveys]
        sweep_idle([(line, sessions) for line, sessions in left if sessions], SWEEP_S)

    def copy_with(self, config: ClusterConfig, without: Collection[str] = ()) -> "SshAllocation":
        """Return the same hosts, but some, with another stack, and connections of its own that are opened when it starts."""
        copy = SshAllocation(config, [each for each in self._endpoints if each.name not in without], ())
        copy.hosts = [host for host in self.hosts if host.name not in without]
        return copy

    def start(self, argv: Sequence[str]) -> ChildrenChannel:
        session = uuid.uuid4().hex
        env = select_variables(os.environ, TRAINING, self._config.environment)
        env.pop(OWNER, None)
        env |= {SESSION: session, CONTROLLER: get_controller_id()}
        lines = self._start(bootstrap.adapt_argv(self._config, argv), env)
        return ChildrenChannel(
            lines,
            empty_message=f"no agent is left on {', '.join(host.name for host in self.hosts)}",
            clean_up=partial(self._clean_up, lines, session),
            leave_s=LEAVE_S,
        )

    def close(self) -> None:
        """Close connections that were not used."""
        for line in self._idle:
            line.let_go()
        self._idle = []

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> list[SshProcess]:
        """Start a command on every host. If a kept connection has ended without a message, all connections are opened anew."""
        have_waited = bool(self._idle)
        lines = self._open_processes()
        try:
            start_on_all(lines, argv, env, heartbeat_timeout_s=self._config.heartbeat_timeout_s)
        except HostRefusal as exc:
            raise AllocationError(str(exc), host=exc.host) from exc
        except Unreachable as exc:
            if not have_waited:
                raise AllocationOver(str(exc), host=exc.host) from exc
            return self._start(argv, env)
        return lines

    def _open_processes(self) -> list[SshProcess]:
        """Return a connection to every host: the kept ones that still work, and new ones. Raises `AllocationOver`."""
        waiting = {line.host: line for line in self._idle if line.is_idle()}
        for line in self._idle:
            if line.host not in waiting:
                line.let_go()
        self._idle = list(waiting.values())
        missing = [(index, endpoint) for index, endpoint in enumerate(self._endpoints) if index not in waiting]
        try:
            found = open_processes(Handshake.from_config(self._config), missing) if missing else []
        except Unreachable as exc:
            raise AllocationOver(str(exc), hosts=exc.hosts, reasons=exc.reasons) from exc
        self._idle = []
        return sorted([*waiting.values(), *found], key=lambda line: line.host)

    def _clean_up(self, lines: Sequence[SshProcess], session: str) -> None:
        """End the session's processes where a supervisor has not confirmed that none is left. Errors are ignored."""
        unsure = [(line.host, line.endpoint) for line in lines if not line.is_clean]
        if unsure:
            sweep_hosts(self._config, unsure, [session], SWEEP_S)
