"""A run of any program as tasks, as `dtfperf launch` and `dtfperf notebook` start it, and a tunnel to one of its hosts.

    with Tunnel(port) as tunnel:
        launcher.launch(spec, ..., tunnel=tunnel)

The local end of the tunnel is a port of this machine's loopback interface; its connections reach a program on a host. The
run's thread forwards the agent's messages, and does not wait for a browser; the tunnel has its own. See `node/tunnel.py`.
"""

import itertools
import math
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import Roles, place
from pytest_dtfperf.errors import HostLost, UsageError
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.launch.run_controller import RunController
from pytest_dtfperf.launch.watch import Event
from pytest_dtfperf.messages.agent import OutputMessage, TunnelMessage, TunnelReady
from pytest_dtfperf.node.tunnel import Connections, TunnelProtocolError
from pytest_dtfperf.spec import Spec

HERE = "127.0.0.1"
MOST = 100  # simultaneous connections; further ones wait. JupyterLab has one for each kernel, and a browser six more
_BACKLOG = 128


OnOutput = Callable[[str, Sequence[str], int], object]  # task, lines of output, number of dropped lines


class ProgramRun(RunController):
    """A run of tasks that may train or wait for any time; nothing is measured."""

    def __init__(
        self,
        agents: Agents,
        config: ClusterConfig,
        spec: Spec,
        *,
        roles: Roles,
        on_output: OnOutput | None,
        tunnel: "Tunnel | None",
    ) -> None:
        """Place the tasks; see `Launcher.launch` for the arguments. Raises `SpecError`."""
        own = config.limits
        limits = replace(own, first_step_s=math.inf, progress_s=math.inf, run_s=math.inf, leave_s=own.leave_s + roles.grace_s)
        tasks = roles.name_tasks(place(spec, agents.hosts, config))
        super().__init__(
            agents,
            replace(config, limits=limits),
            spec,
            tasks,
            roles=roles,
            tunnel_host=tasks[0].host if tunnel else None,
        )
        self._on_output = on_output
        self._tunnel = tunnel

    def _start_options(self) -> dict[str, Any]:
        return {"streams": self._on_output is not None}

    def _start(self, cluster: Mapping[str, Sequence[str]]) -> None:
        super()._start(cluster)
        if self._tunnel:
            self._tunnel.begin(partial(self._order, "tunnel"))

    def _check_connection(self) -> None:
        """Close the tunnel if its host violated the protocol; raise any other error that ended the tunnel."""
        error = self._tunnel.error if self._tunnel else None
        if isinstance(error, TunnelProtocolError) and self._tunnel_host is not None:
            self._receive(self._agents.give_up(self._tunnel_host, str(error)))
        elif error:
            raise error

    def _receive(self, event: Event) -> None:
        super()._receive(event)
        if isinstance(event, TunnelMessage) and self._tunnel:
            self._tunnel.receive(event)
        elif isinstance(event, OutputMessage) and self._on_output:
            self._on_output(event.task, event.lines, event.left_out)


class Tunnel:
    """Listens from its creation on; connections wait until the program on the host listens, too."""

    def __init__(self, port: int = 0) -> None:
        """Listen on a port; 0: any free one. Raises `UsageError` if the port is taken."""
        try:
            self._listener = socket.create_server((HERE, port), backlog=_BACKLOG)
        except OSError as exc:
            hint = "Choose another one, or --port=0 for any that is free"
            raise UsageError(f"cannot listen at port {port} of this machine: {exc.strerror}. {hint}") from exc
        self.port: int = self._listener.getsockname()[1]
        self.error: Exception | None = None  # the error that ended its thread early
        self.on_ready: Callable[[], object] = lambda: None  # called once the program listens, in the run's thread
        self._is_ready = self._serves = self._over = False
        self._listener.setblocking(False)
        self._wakes, self._wake = socket.socketpair()
        self._wakes.setblocking(False)
        self._wake.setblocking(False)
        self._received: deque[TunnelMessage] = deque()
        self._numbers = itertools.count(1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakes, selectors.EVENT_READ, self._drain)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over = True
        self._notify()
        if self._thread:
            self._thread.join()
            self._connections.close()
        for each in (self._listener, self._wakes, self._wake, self._selector):
            each.close()

    # From the run's thread

    def begin(self, send: Callable[..., object]) -> None:
        """Begin with `send`, which sends messages to the other end. Called once."""
        self._connections = Connections(self._selector, send)
        self._thread = threading.Thread(target=self._serve, args=(send,), name="dtfperf-tunnel", daemon=True)
        self._thread.start()

    def receive(self, message: TunnelMessage) -> None:
        """Process a message of the other end."""
        self._received.append(message)
        self._notify()
        if isinstance(message, TunnelReady) and not self._is_ready:
            self._is_ready = True
            self.on_ready()

    # In its own thread

    def _serve(self, send: Callable[..., object]) -> None:
        try:
            while not self._over:
                for key, _ in self._selector.select():
                    if self._selector.get_map().get(key.fd) is key:  # an earlier call may have closed it
                        key.data()
                while self._received:
                    self._handle(self._received.popleft(), send)
                self._watch_listener(send)
        except HostLost:
            pass  # the run's thread notices it, too
        except Exception as exc:  # raised in the run's thread, because errors of this thread are not shown
            self.error = exc

    def _handle(self, message: TunnelMessage, send: Callable[..., object]) -> None:
        if not isinstance(message, TunnelReady):
            self._connections.receive({"does": message.does, **message.to_json()})
        elif self._serves:
            raise TunnelProtocolError("sent twice that its program listens")
        else:
            self._serves = True

    def _watch_listener(self, send: Callable[..., object]) -> None:
        """Accept no connections before the program listens or at the maximum, and again afterwards."""
        watched, wanted = self._listener in self._selector.get_map(), self._serves and len(self._connections) < MOST
        if wanted and not watched:
            self._selector.register(self._listener, selectors.EVENT_READ, lambda: self._accept(send))
        elif watched and not wanted:
            self._selector.unregister(self._listener)

    def _accept(self, send: Callable[..., object]) -> None:
        with suppress(OSError):  # the client has disconnected
            sock, _ = self._listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = next(self._numbers)
            send(does="open", connection=number)
            self._connections.add(number, sock)

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            self._wakes.recv(4096)

    def _notify(self) -> None:
        with suppress(BlockingIOError):  # the other thread has not yet processed the last ones
            self._wake.send(b"x")
