"""Parallel connections to hosts: to all or none for a training, to as many as possible to clean up.

ssh -- script --> sh -- set-up lines --> python <-- header, bundle -- supervisor <-- orders: "sweep", "run"
"""

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh.bootstrap import Handshake
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.clusters.ssh.ssh_process import Cancelled, CancelToken, SshProcess, TransientError, Unreachable
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.retry import retry

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.3, 2.25  # before another try at a host that was too busy to answer
_STATUS_S = 0.5
_START_S = 30.0  # from the order to start a command to its start, on a host that has answered before


def open_process(
    handshake: Handshake, index: int, endpoint: Endpoint, over: CancelToken, stages: MutableMapping[str, str] | None = None
) -> SshProcess:
    """Connect to a host, and return once its supervisor waits for orders. Raises `Unreachable` if it fails or is too late.

    Until then, `stages` shows the host's current step under its name.
    """
    deadline = time.monotonic() + handshake.limit_s

    def connect() -> SshProcess:
        process = _start(handshake, index, endpoint, {} if stages is None else stages)
        try:
            process.shake_hands(deadline, over)
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
            sleep=lambda pause_s: over.wait([], pause_s),
        )
    except TransientError as exc:
        raise Unreachable(f"{exc}, again and again for {handshake.limit_s:g} s") from None


def _start(handshake: Handshake, index: int, endpoint: Endpoint, stages: MutableMapping[str, str]) -> SshProcess:
    try:
        return SshProcess(index, endpoint, handshake, stages)
    except OSError as exc:
        hint = ". Hint: install OpenSSH's client" if exc.filename == "ssh" else ""  # else no file or process can be created
        raise Unreachable(f"cannot start ssh: {exc.strerror or exc}{hint}") from exc


def open_processes(
    handshake: Handshake, endpoints: Sequence[tuple[int, Endpoint]], on_status: Callable[[str], object] = lambda status: None
) -> list[SshProcess]:
    """Connect to all hosts or none: if one cannot be reached, the other connections are closed. Raises `Unreachable`."""
    lines: list[Future[SshProcess]] = []
    stages: dict[str, str] = {}
    with CancelToken() as over, ThreadPoolExecutor(handshake.parallel, "dtfperf-ssh") as pool:
        try:
            lines = [pool.submit(open_process, handshake, index, endpoint, over, stages) for index, endpoint in endpoints]
            waiting, reported = set(lines), ""
            while waiting:
                done, waiting = wait(waiting, _STATUS_S, FIRST_EXCEPTION)
                for each in done:
                    each.result()
                status = _format_progress(len(waiting), stages)
                if waiting and stages and status != reported:
                    on_status(reported := status)
            return [each.result() for each in lines]
        except BaseException:  # Ctrl-C too: no caller has the connections yet
            over.cancel()
            pool.shutdown(cancel_futures=True)
            for each in lines:
                if not each.cancelled() and not each.exception():
                    each.result().let_go()
            raise


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
        with CancelToken() as over:
            deadline = time.monotonic() + _START_S
            for line in lines:
                line.answer(deadline - time.monotonic(), over)
    except BaseException:
        for line in lines:
            line.let_go()
        raise


def sweep_idle(lines: Sequence[tuple[SshProcess, Sequence[str]]], within_s: float) -> None:
    """End what these sessions have left on the hosts of idle connections."""
    for line, sessions in lines:
        line.order({"sweep": list(sessions)})
    deadline = time.monotonic() + within_s
    with CancelToken() as over:
        for line, _ in lines:
            with suppress(Unreachable):
                line.answer(deadline - time.monotonic(), over)


def sweep_hosts(
    config: ClusterConfig, endpoints: Sequence[tuple[int, Endpoint]], sessions: Sequence[str], within_s: float
) -> None:
    """End what these sessions have left on these hosts, if they can be reached in that time."""
    handshake = Handshake.of(config, limit_s=within_s)

    def one(index: int, endpoint: Endpoint, over: CancelToken) -> None:
        with suppress(Unreachable, Cancelled):
            line = open_process(handshake, index, endpoint, over)
            try:
                line.order({"sweep": list(sessions)})
                line.answer(within_s, over)
            finally:
                line.let_go()

    with CancelToken() as over, ThreadPoolExecutor(handshake.parallel, "dtfperf-ssh") as pool:
        for each in [pool.submit(one, index, endpoint, over) for index, endpoint in endpoints]:
            each.result()
