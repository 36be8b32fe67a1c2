"""What an agent does for as long as it lives: one loop over all lines, the controller's orders, and what goes out."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pytest_dtfperf.node import guard, interfaces, owner, ports, probes, processes, run_folder, tunnel, wire
from pytest_dtfperf.node.gpu_state import GpuWatch
from pytest_dtfperf.node.host_run import RunHere, RunMonitor
from pytest_dtfperf.node.host_state import HostState
from pytest_dtfperf.node.processes import Leave
from pytest_dtfperf.node.tasks import Task, Zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

BEAT_S = 1.0
_STDIN, _STDOUT = 0, 1
_TICK_S = 0.25  # how late a beat or a missing heartbeat may be noticed


class Agent:
    """The event loop, what comes in, and the orders."""

    def __init__(
        self,
        host: int,
        *,
        entry: str,
        heartbeat_timeout_s: float,
        cold: bool,
        device: str = "",
        container: str | None = None,
        network: Sequence[int] = (),
    ) -> None:
        """Start the zygote and list the devices.

        Args:
            device: that of clusters.toml, if any.
            container: the digest of the image that this process is in, if any.
            network: the files of a network for tasks alone (node/isolation.py), where there is one.

        Raises:
            Leave: this host's GPUs cannot be listed.
        """
        self._container = container
        self._host = host
        self._network = network
        self._entry = entry
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._heard = self._beat_due = time.monotonic()
        self._orders = wire.Lines()
        self._outbox = wire.Outbox(_STDOUT)
        self._selector = selectors.DefaultSelector()
        self._run: RunHere | None = None
        self._warm: Zygote | None = None
        self._zygotes: dict[int, Zygote] = {}  # by process id: the warm one, and those that serve one cold task each
        self._hello_sent = False
        self._selector.register(_STDIN, selectors.EVENT_READ, self._hear_controller)
        self._sigchld = processes.SigchldPipe()
        self._selector.register(self._sigchld, selectors.EVENT_READ, self._on_sigchld)
        if not cold:
            self._warm = self._new_zygote()
        self._gpus = _gpus(needed=device != "cpu")  # while other work goes on
        self._state = HostState()
        self._unguarded = guard.why_not()
        self._free_since_s = 0.0  # when the last run ended
        self._last_seen: tuple[float, Any] | None = None  # of the GPUs
        # Of a part of one (MIG) there is no report: only the whole GPU can be queried, others' parts included.
        whole = [gpu.index for gpu in self._gpus if gpu.index.isdecimal()]
        self._gpu_watch = GpuWatch(whole) if whole else None
        if self._gpu_watch:
            self._selector.register(self._gpu_watch, selectors.EVENT_READ, partial(self._hear_gpus, self._gpu_watch))
        if cold:
            self._hello()  # else it follows when the zygote is ready

    def serve(self) -> NoReturn:
        """Serve until it is time to `Leave`."""
        while True:
            self._watch_stdout()
            for key, _ in self._selector.select(_TICK_S):
                if self._selector.get_map().get(key.fd) is key:  # an earlier one of these calls may have closed it
                    key.data()
            self._outbox.flush()
            now = time.monotonic()
            if now - self._heard > self._heartbeat_timeout_s:
                raise Leave(f"no word from the controller for {self._heartbeat_timeout_s:g} s")
            if self._run and self._run.tunnel:
                self._run.tunnel.poll()
            if now >= self._beat_due and self._run and not self._run.over and not self._outbox:
                self._beat(self._run)
                self._beat_due = now + BEAT_S

    def close(self) -> None:
        """End all tasks, as the agent leaves."""
        if self._run:
            self._run.close_tunnel()

    # What comes in

    def _hear_controller(self) -> None:
        data = os.read(_STDIN, 1 << 16)
        if not data:
            raise Leave("the controller closed the line")
        self._heard = time.monotonic()
        for line in self._orders.feed(data):
            order = wire.decode(line)
            ORDERS[order["order"]](self, order)

    def _hear_zygote(self, zygote: Zygote) -> None:
        match zygote.read_message():
            case None:  # its death is reported where it is reaped
                self._close(zygote.line)
            case {"ready": True}:
                if not self._hello_sent:
                    self._hello()
            case {"forked": task_id, "pid": pid}:
                self._record_fork(task_id, pid)
            case {"exited": pid, "code": code}:
                self._record_exit(pid, code)

    def _hear_task(self, task: Task) -> None:
        lines, more_may_come = task.read_lines()
        if not more_may_come:
            self._close(task.line)
        for line in lines:
            message = wire.decode(line)
            if message["kind"] == "failed":
                task.reason = message["reason"]  # goes out with its exit
                continue
            if message["kind"] != "counting":
                self._emit(**{**message, "event": "task", "run": task.run, "task": task.name})
            if not self._run or self._run.id != task.run:
                continue
            if message["kind"] == "counting":
                self._run.monitor.call(task.name)
            elif message["kind"] == "report":
                self._run.monitor.report(task.name)

    def _hear_gpus(self, watch: GpuWatch) -> None:
        seen = watch.hear()
        if seen is None:
            self._selector.unregister(watch)
            watch.close()
        elif seen:
            self._last_seen = seen[-1]
            if self._run and not self._run.over:
                self._run.monitor.see(seen)

    def _on_sigchld(self) -> None:
        self._sigchld.drain()
        self._reap()

    def _reap(self) -> None:
        """Reap the agent's own children: zygotes, tasks that lost their zygote, adopted daemons."""
        dead = processes.reap_children()
        # A zygote's death kills its tasks: it is the cause and is reported first.
        for pid in dead.keys() & self._zygotes.keys():
            self._zygote_died(self._zygotes.pop(pid), dead.pop(pid))
        for pid, code in dead.items():
            self._record_exit(pid, code)

    def _record_fork(self, task_id: str, pid: int) -> None:
        task = next((task for task in self._tasks() if task.id == task_id), None)
        if task is None:  # its run was stopped while the zygote was still importing
            processes.kill(pid)
            return
        task.pid = pid
        self._emit("started", run=task.run, task=task.name, pid=pid)

    def _record_exit(self, pid: int, code: int) -> None:
        task = next((task for task in self._tasks() if task.pid == pid and not task.exited), None)
        if task is None:
            return
        task.exited = True
        if task.line.fileno() >= 0:
            self._hear_task(task)  # what it sent before it ended comes before its end
        how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
        self._emit("exit", run=task.run, task=task.name, **how, last_lines=task.last_lines)

    def _zygote_died(self, zygote: Zygote, code: int) -> None:
        if zygote is self._warm:
            self._warm = None  # the next run starts it anew
        if not self._hello_sent:
            raise Leave(f"cannot import {self._entry}:\n" + "\n".join(zygote.log.last_lines()), 1)
        if self._run and not self._run.over:
            how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
            self._emit("zygote_died", run=self._run.id, **how, last_lines=zygote.log.last_lines())

    # What goes out

    def _watch_stdout(self) -> None:
        """Handle the event that a controller that is slow to read has read on."""
        watched = _STDOUT in self._selector.get_map()
        if self._outbox and not watched:
            self._selector.register(_STDOUT, selectors.EVENT_WRITE, self._outbox.flush)
        elif watched and not self._outbox:
            self._selector.unregister(_STDOUT)

    def _emit(self, event: str, **data: Any) -> None:
        self._outbox.put(wire.encode({"event": event, "host": self._host, **data}))

    def _hello(self) -> None:
        self._hello_sent = True
        cpus = sorted(os.sched_getaffinity(0))
        fingerprint = probes.fingerprint(self._gpus)
        if self._container:
            fingerprint["software"]["container"] = self._container
        self._emit(
            "hello",
            fingerprint=fingerprint,
            pid=os.getpid(),
            cpus=cpus,
            gpus=[gpu.visible_as for gpu in self._gpus],
            addresses=interfaces.own(),
            interfaces=interfaces.list_interfaces(),
            unguarded=self._unguarded,
            boot=owner.boot_id(),
        )

    def _beat(self, run: RunHere) -> None:
        tasks = {}
        for task in run.tasks.values():
            if task.pid and not task.exited and (process := processes.inspect(task.pid)):
                tasks[task.name] = {"pid": task.pid, "state": process.state, "cpu_s": process.cpu_s}
        seen = [process.state for pid in self._zygotes if (process := processes.inspect(pid))]
        zygote_state = next((state for state in seen if state in processes.STOPPED), seen[0] if seen else None)
        self._emit("beat", run=run.id, tasks=tasks, zygote_state=zygote_state, load=probes.load())

    # Orders. Each comes to all agents, and begins its run on all: a host that has no part in it gives signs of life, too.

    def _reserve(self, order: Mapping[str, Any]) -> None:
        run = self._begin(order["run"])
        wanted = order["hosts"].get(str(self._host))
        if wanted is None:
            return
        reserve = (
            partial(ports.reserve_exactly, wanted["ports"]) if "ports" in wanted else partial(ports.reserve, wanted["count"])
        )
        network = self._network_for(order)
        try:
            held = ports.within(network, reserve) if network else reserve()
        except ports.PortsTaken as exc:
            self._emit("refused", run=run.id, reason=str(exc), ports=exc.ports)
            return
        run.reservations.append(held)
        if not network and order.get("peers") is not None and self._unguarded is None:
            run.guards.append(guard.Guard(run.id, held.ports, order["peers"]))
        self._emit("reserved", run=run.id, ports=held.ports)

    def _start(self, order: Mapping[str, Any]) -> None:
        run = self._begin(order["run"])
        if order.get("free_ports"):
            run.free_ports()
        tunnel = self._dig(run) if order.get("tunnel") == self._host else {}
        for wanted in order["tasks"]:
            if wanted["host"] != self._host:
                continue
            task = Task(run.id, wanted["task"], {**order.get("env", {}), **wanted["env"], **tunnel}, wanted["cpus"])
            run.tasks[task.name] = task
            self._selector.register(task.line, selectors.EVENT_READ, partial(self._hear_task, task))
            task.send({"order": {**order["common"], **wanted["order"]}})
            self._zygote_for(task, order["cold"]).fork(task, self._network_for(order))

    def _notify(self, order: Mapping[str, Any]) -> None:
        if self._run and self._run.id == order["run"]:
            self._run.monitor.hear(order["word"])
        for task in self._tasks():
            if task.name in order["tasks"] and task.run == order["run"]:
                task.send({"word": order["word"]})

    def _stop(self, order: Mapping[str, Any]) -> None:
        survivors = self._end_run(order.get("grace_s", 0.0))
        if self._run and self._run.id == order["run"] and (state := self._run.account()):
            self._emit("state", run=self._run.id, state=state)
        self._emit("stopped", run=order["run"], survivors=survivors)

    def _logs(self, order: Mapping[str, Any]) -> None:
        if self._run and self._run.id == order["run"]:
            for task in self._run.tasks.values():
                self._emit("log", run=task.run, task=task.name, text=task.log.text())

    def _carry(self, order: Mapping[str, Any]) -> None:
        """Pass on a message of the tunnel's other end."""
        if self._run and self._run.id == order["run"] and self._run.tunnel:
            self._run.tunnel.hear(order)

    def _ping(self, order: Mapping[str, Any]) -> None:
        """That it came is all there is to it."""

    # Runs and zygotes

    def _tasks(self) -> list[Task]:
        return list(self._run.tasks.values()) if self._run and not self._run.over else []

    def _begin(self, run_id: str) -> RunHere:
        if self._run is None or self._run.id != run_id:
            self._end_run()
            gpus = [gpu.index for gpu in self._gpus]
            self._run = RunHere(
                run_id, RunMonitor(self._state, gpus=gpus, last=self._last_seen, free_since_s=self._free_since_s)
            )
        return self._run

    def _end_run(self, grace_s: float = 0.0) -> list[int]:
        """End what is left of the run, all but the warm zygote. Returns the process ids of what even SIGKILL did not end."""
        if self._run is None or self._run.over:
            return []
        self._run.over = True
        if self._warm and (process := processes.inspect(self._warm.pid)) and process.stopped:
            self._warm = None  # of no use to the next run
        self._zygotes = {self._warm.pid: self._warm} if self._warm else {}
        spared = {*self._zygotes, *([self._gpu_watch.pid] if self._gpu_watch else [])}
        survivors = processes.end_below(spared, grace_s=grace_s, reap=self._reap)
        self._free_since_s = time.monotonic()
        for task in self._run.tasks.values():
            self._close(task.line)
        self._run.free_ports()
        self._run.lift_guards()
        self._run.close_tunnel()
        return survivors

    def _dig(self, run: RunHere) -> dict[str, str]:
        """Open a tunnel to the run's program; return the variables that name it to the program."""
        run_folder.remove_abandoned()
        try:
            run.folder = run_folder.make()
        except OSError as exc:  # its disk is full
            raise Leave(f"cannot make a folder in {run_folder.around()} on this host: {exc.strerror}", 1) from exc
        run.tunnel = tunnel.HostEnd(run.folder, self._selector, partial(self._emit, "tunnel", run=run.id))
        return {tunnel.VARIABLE: run.tunnel.path}

    def _network_for(self, order: Mapping[str, Any]) -> Sequence[int]:
        """Return the files of the network that a run's tasks are in; none where that is this host's."""
        return self._network if order.get("isolated") else ()

    def _zygote_for(self, task: Task, cold: bool) -> Zygote:
        if cold:
            return self._new_zygote(task.env)
        if self._warm is None:
            self._warm = self._new_zygote()
        return self._warm

    def _new_zygote(self, env: Mapping[str, str] | None = None) -> Zygote:
        zygote = Zygote(self._entry, env or {})
        self._zygotes[zygote.pid] = zygote
        self._selector.register(zygote.line, selectors.EVENT_READ, partial(self._hear_zygote, zygote))
        return zygote

    def _close(self, line: socket.socket) -> None:
        if line.fileno() >= 0:
            self._selector.unregister(line)
            line.close()


def _gpus(*, needed: bool) -> list[probes.Gpu]:
    """Return this host's GPUs. Where the cluster trains on cores those that cannot be listed are none; else raises `Leave`."""
    try:
        return probes.gpus()
    except probes.GpusUnknown as exc:
        if not needed:
            return []
        raise Leave(f"the GPUs of this host cannot be listed: {exc}. {probes.WITHOUT_GPUS}", 1) from exc


ORDERS: Mapping[str, Callable[[Agent, Mapping[str, Any]], None]] = {
    "reserve": Agent._reserve,
    "start": Agent._start,
    "notify": Agent._notify,
    "stop": Agent._stop,
    "logs": Agent._logs,
    "tunnel": Agent._carry,
    "ping": Agent._ping,
}
