"""The agent: one process on each allocated host, which gets orders on stdin, answers on stdout, and owns its tasks.

    controller -- orders --> agent -- requests --> zygote -- forks --> task, task, ...
               <-- events --       <- pid, exits --
                                  <------------- messages both ways ------> each task

stdin carries the heartbeat: at its end, or after `--heartbeat-timeout-s` without a byte, the controller has ended, and the
agent kills all its descendants and exits. It adopts processes that daemonise, so that they remain descendants. If the agent
itself is killed, the kernel kills its zygote and with it the tasks; daemons are found by their environment (`node/sweep.py`).

A backend starts it with these variables: DTFPERF_HOST_INDEX, DTFPERF_SESSION (the id that a sweep searches) and, on the
controller's own machine, DTFPERF_OWNER (the controller, in the form of `node/owner.py`).
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pytest_dtfperf.node import interfaces, isolation, owner, ports, probes, processes, sweep, tunnel, wire
from pytest_dtfperf.node.gpu_state import GpuWatch
from pytest_dtfperf.node.host_run import HostRun, RunMonitor
from pytest_dtfperf.node.host_state import HostCounters
from pytest_dtfperf.node.processes import Leave, ignore_signals, leave_on_signals
from pytest_dtfperf.node.tasks import Task, Zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

BEAT_S = 1.0
_STDIN, _STDOUT = 0, 1
_TICK_S = 0.25  # how late a beat or a missing heartbeat may be noticed


class Agent:
    """The event loop of one host, with its tasks and the handlers of the controller's orders."""

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
            host: The index of this host.
            entry: The function that a task runs, "module:function".
            heartbeat_timeout_s: Seconds without input after which the controller counts as ended.
            cold: Whether each task gets a new zygote.
            device: `device` of clusters.toml, if it is set.
            container: The digest of the image in which this process runs, if any.
            network: The namespace files of the tasks' own network (node/isolation.py), if they have one.

        Raises:
            Leave: This host's GPUs cannot be listed.
        """
        self._container = container
        self._host = host
        self._network = network
        self._entry = entry
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._last_input_s = self._beat_due = time.monotonic()
        self._orders = wire.Lines()
        self._outbox = wire.Outbox(_STDOUT)
        self._selector = selectors.DefaultSelector()
        self._run: HostRun | None = None
        self._warm: Zygote | None = None
        self._zygotes: dict[int, Zygote] = {}  # by process id: the warm one, and those that serve one cold task each
        self._hello_sent = False
        self._selector.register(_STDIN, selectors.EVENT_READ, self._receive_orders)
        self._sigchld = processes.SigchldPipe()
        self._selector.register(self._sigchld, selectors.EVENT_READ, self._on_sigchld)
        if not cold:
            self._warm = self._start_zygote()
        self._gpus = _list_gpus(needed=device != "cpu")  # while the zygote imports
        self._state = HostCounters()
        self._why_no_firewall = isolation.explain_missing_firewall()
        self._free_since_s = 0.0  # when the last run ended
        self._last_seen: tuple[float, Any] | None = None  # the last sample of the GPUs
        # MIG devices are not sampled: only whole GPUs can be queried, including other users' MIG devices.
        whole = [gpu.index for gpu in self._gpus if gpu.index.isdecimal()]
        self._gpu_watch = GpuWatch(whole) if whole else None
        if self._gpu_watch:
            self._selector.register(self._gpu_watch, selectors.EVENT_READ, partial(self._receive_gpu_samples, self._gpu_watch))
        if cold:
            self._send_hello()  # otherwise it is sent when the zygote is ready

    def serve(self) -> NoReturn:
        """Serve until `Leave` is raised."""
        while True:
            self._watch_stdout()
            for key, _ in self._selector.select(_TICK_S):
                if self._selector.get_map().get(key.fd) is key:  # an earlier one of these calls may have closed it
                    key.data()
            self._outbox.flush()
            now = time.monotonic()
            if now - self._last_input_s > self._heartbeat_timeout_s:
                raise Leave(f"no message from the controller for {self._heartbeat_timeout_s:g} s")
            if self._run and self._run.tunnel:
                self._run.tunnel.poll()
            if now >= self._beat_due and self._run and not self._run.is_over and not self._outbox:
                self._send_beat(self._run)
                self._beat_due = now + BEAT_S

    def close(self) -> None:
        """Close the tunnel, at the agent's end."""
        if self._run:
            self._run.close_tunnel()

    # What comes in

    def _receive_orders(self) -> None:
        data = os.read(_STDIN, 1 << 16)
        if not data:
            raise Leave("the controller closed the connection")
        self._last_input_s = time.monotonic()
        for line in self._orders.feed(data):
            order = wire.decode(line)
            ORDERS[order["order"]](self, order)

    def _receive_from_zygote(self, zygote: Zygote) -> None:
        match zygote.read_message():
            case None:  # its death is reported where it is reaped
                self._close(zygote.line)
            case {"ready": True}:
                if not self._hello_sent:
                    self._send_hello()
            case {"forked": task_id, "pid": pid}:
                self._record_fork(task_id, pid)
            case {"exited": pid, "code": code}:
                self._record_exit(pid, code)

    def _receive_from_task(self, task: Task) -> None:
        lines, more_may_come = task.read_lines()
        if not more_may_come:
            self._close(task.line)
        for line in lines:
            message = wire.decode(line)
            if message["kind"] == "failed":
                task.reason = message["reason"]  # sent with its exit
                continue
            if message["kind"] != "counting":
                self._emit(**{**message, "event": "task", "run": task.run, "task": task.name})
            if not self._run or self._run.id != task.run:
                continue
            if message["kind"] == "counting":
                self._run.monitor.note_measuring(task.name)
            elif message["kind"] == "report":
                self._run.monitor.note_done(task.name)

    def _receive_gpu_samples(self, watch: GpuWatch) -> None:
        seen = watch.read_samples()
        if seen is None:
            self._selector.unregister(watch)
            watch.close()
        elif seen:
            self._last_seen = seen[-1]
            if self._run and not self._run.is_over:
                self._run.monitor.add_samples(seen)

    def _on_sigchld(self) -> None:
        self._sigchld.drain()
        self._reap()

    def _reap(self) -> None:
        """Reap the agent's own children: zygotes, tasks that lost their zygote, adopted daemons."""
        dead = processes.reap_children()
        # The death of a zygote kills its tasks: it is the cause, and is reported first.
        for pid in dead.keys() & self._zygotes.keys():
            self._on_zygote_death(self._zygotes.pop(pid), dead.pop(pid))
        for pid, code in dead.items():
            self._record_exit(pid, code)

    def _record_fork(self, task_id: str, pid: int) -> None:
        task = next((task for task in self._list_tasks() if task.id == task_id), None)
        if task is None:  # its run was stopped while the zygote was still importing
            processes.kill(pid)
            return
        task.pid = pid
        self._emit("started", run=task.run, task=task.name, pid=pid)

    def _record_exit(self, pid: int, code: int) -> None:
        task = next((task for task in self._list_tasks() if task.pid == pid and not task.exited), None)
        if task is None:
            return
        task.exited = True
        if task.line.fileno() >= 0:
            self._receive_from_task(task)  # messages that it sent before its end come first
        how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
        self._emit("exit", run=task.run, task=task.name, **how, last_lines=task.last_lines)

    def _on_zygote_death(self, zygote: Zygote, code: int) -> None:
        if zygote is self._warm:
            self._warm = None  # the next run starts a new one
        if not self._hello_sent:
            raise Leave(f"cannot import {self._entry}:\n" + "\n".join(zygote.log.read_last_lines()), 1)
        if self._run and not self._run.is_over:
            how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
            self._emit("zygote_died", run=self._run.id, **how, last_lines=zygote.log.read_last_lines())

    # What goes out

    def _watch_stdout(self) -> None:
        """Watch stdout while lines are waiting for a slow controller."""
        watched = _STDOUT in self._selector.get_map()
        if self._outbox and not watched:
            self._selector.register(_STDOUT, selectors.EVENT_WRITE, self._outbox.flush)
        elif watched and not self._outbox:
            self._selector.unregister(_STDOUT)

    def _emit(self, event: str, **data: Any) -> None:
        self._outbox.put(wire.encode({"event": event, "host": self._host, **data}))

    def _send_hello(self) -> None:
        self._hello_sent = True
        cpus = sorted(os.sched_getaffinity(0))
        fingerprint = probes.read_fingerprint(self._gpus)
        if self._container:
            fingerprint["software"]["container"] = self._container
        self._emit(
            "hello",
            fingerprint=fingerprint,
            pid=os.getpid(),
            cpus=cpus,
            gpus=[gpu.visible_as for gpu in self._gpus],
            addresses=interfaces.list_addresses(),
            interfaces=interfaces.list_interfaces(),
            unguarded=self._why_no_firewall,
            boot=owner.boot_id(),
        )

    def _send_beat(self, run: HostRun) -> None:
        tasks = {}
        for task in run.tasks.values():
            if task.pid and not task.exited and (process := processes.inspect(task.pid)):
                tasks[task.name] = {"pid": task.pid, "state": process.state, "cpu_s": process.cpu_s}
        seen = [process.state for pid in self._zygotes if (process := processes.inspect(pid))]
        zygote_state = next((state for state in seen if state in processes.STOPPED), seen[0] if seen else None)
        self._emit("beat", run=run.id, tasks=tasks, zygote_state=zygote_state, load=probes.read_load())

    # Orders. Each is sent to all agents and begins the run on all: hosts without tasks send beats, too.

    def _reserve(self, order: Mapping[str, Any]) -> None:
        run = self._begin(order["run"])
        wanted = order["hosts"].get(str(self._host))
        if wanted is None:
            return
        reserve = (
            partial(ports.reserve_exactly, wanted["ports"]) if "ports" in wanted else partial(ports.reserve, wanted["count"])
        )
        network = self._get_network(order)
        try:
            held = ports.reserve_in_network(network, reserve) if network else reserve()
        except ports.PortsTaken as exc:
            self._emit("refused", run=run.id, reason=str(exc), ports=exc.ports)
            return
        run.reservations.append(held)
        if not network and order.get("peers") is not None and self._why_no_firewall is None:
            run.firewalls.append(isolation.Firewall(run.id, held.ports, order["peers"]))
        self._emit("reserved", run=run.id, ports=held.ports)

    def _start(self, order: Mapping[str, Any]) -> None:
        run = self._begin(order["run"])
        if order.get("free_ports"):
            run.free_ports()
        tunnel = self._open_tunnel(run) if order.get("tunnel") == self._host else {}
        for wanted in order["tasks"]:
            if wanted["host"] != self._host:
                continue
            task = Task(run.id, wanted["task"], {**order.get("env", {}), **wanted["env"], **tunnel}, wanted["cpus"])
            run.tasks[task.name] = task
            self._selector.register(task.line, selectors.EVENT_READ, partial(self._receive_from_task, task))
            task.send({"order": {**order["common"], **wanted["order"]}})
            self._get_zygote(task, order["cold"]).fork(task, self._get_network(order))

    def _notify(self, order: Mapping[str, Any]) -> None:
        if self._run and self._run.id == order["run"]:
            self._run.monitor.note_order(order["word"])
        for task in self._list_tasks():
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
                self._emit("log", run=task.run, task=task.name, text=task.log.read_text())

    def _forward_to_tunnel(self, order: Mapping[str, Any]) -> None:
        """Pass on a message of the tunnel's other end."""
        if self._run and self._run.id == order["run"] and self._run.tunnel:
            self._run.tunnel.receive(order)

    def _ping(self, order: Mapping[str, Any]) -> None:
        """Do nothing: the arrival of data is the heartbeat."""

    # Runs and zygotes

    def _list_tasks(self) -> list[Task]:
        return list(self._run.tasks.values()) if self._run and not self._run.is_over else []

    def _begin(self, run_id: str) -> HostRun:
        if self._run is None or self._run.id != run_id:
            self._end_run()
            gpus = [gpu.index for gpu in self._gpus]
            self._run = HostRun(
                run_id, RunMonitor(self._state, gpus=gpus, last=self._last_seen, free_since_s=self._free_since_s)
            )
        return self._run

    def _end_run(self, grace_s: float = 0.0) -> list[int]:
        """End the run's processes, but not the warm zygote. Returns the ids of processes that survived SIGKILL."""
        if self._run is None or self._run.is_over:
            return []
        self._run.is_over = True
        if self._warm and (process := processes.inspect(self._warm.pid)) and process.stopped:
            self._warm = None  # the next run cannot use it
        self._zygotes = {self._warm.pid: self._warm} if self._warm else {}
        spared = {*self._zygotes, *([self._gpu_watch.pid] if self._gpu_watch else [])}
        survivors = processes.end_descendants(spared, grace_s=grace_s, reap=self._reap)
        self._free_since_s = time.monotonic()
        for task in self._run.tasks.values():
            self._close(task.line)
        self._run.free_ports()
        self._run.close_firewalls()
        self._run.close_tunnel()
        return survivors

    def _open_tunnel(self, run: HostRun) -> dict[str, str]:
        """Open a tunnel to the run's program; return the environment variables with its address."""
        sweep.remove_abandoned_folders()
        try:
            run.folder = sweep.make_run_folder()
        except OSError as exc:  # its disk is full
            raise Leave(f"cannot make a folder in {sweep.get_socket_parent()} on this host: {exc.strerror}", 1) from exc
        run.tunnel = tunnel.HostEnd(run.folder, self._selector, partial(self._emit, "tunnel", run=run.id))
        return {tunnel.VARIABLE: run.tunnel.path}

    def _get_network(self, order: Mapping[str, Any]) -> Sequence[int]:
        """Return the namespace files of the network that a run's tasks use; empty if it is the host's network."""
        return self._network if order.get("isolated") else ()

    def _get_zygote(self, task: Task, cold: bool) -> Zygote:
        if cold:
            return self._start_zygote(task.env)
        if self._warm is None:
            self._warm = self._start_zygote()
        return self._warm

    def _start_zygote(self, env: Mapping[str, str] | None = None) -> Zygote:
        zygote = Zygote(self._entry, env or {})
        self._zygotes[zygote.pid] = zygote
        self._selector.register(zygote.line, selectors.EVENT_READ, partial(self._receive_from_zygote, zygote))
        return zygote

    def _close(self, line: socket.socket) -> None:
        if line.fileno() >= 0:
            self._selector.unregister(line)
            line.close()


def _list_gpus(*, needed: bool) -> list[probes.Gpu]:
    """Return this host's GPUs. If they cannot be listed, return none where they are not needed, else raise `Leave`."""
    try:
        return probes.list_gpus()
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
    "tunnel": Agent._forward_to_tunnel,
    "ping": Agent._ping,
}


def main() -> None:
    leave_on_signals()
    host = int(os.environ["DTFPERF_HOST_INDEX"])
    network = isolation.take_inherited_files(os.environ)
    processes.adopt_orphans()
    processes.continue_after_parent()
    os._exit(_run(host, **_parse_options(sys.argv[1:]), network=network))


def _parse_options(arguments: list[str]) -> dict[str, Any]:
    """Parse the command line: `--entry MODULE:FUNCTION`, `--heartbeat-timeout-s`, `--start`, `--device` and `--container`."""
    given = {"--heartbeat-timeout-s": "15", "--start": "warm", **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    return {
        "entry": given["--entry"],
        "heartbeat_timeout_s": float(given["--heartbeat-timeout-s"]),
        "cold": given["--start"] == "cold",
        "device": given.get("--device", ""),
        "container": given.get("--container"),
    }


def _run(host: int, **options: Any) -> int:
    """Serve until the agent must leave, and end all its processes. Returns the exit code; the reason is on stderr."""
    code, agent = 1, None
    try:
        agent = Agent(host, **options)
        agent.serve()
    except Leave as leaving:
        code = leaving.code
        _report(str(leaving))
    except isolation.FirewallUnavailable as exc:  # although it was possible when this agent started
        _report(f"no firewall around the run's ports: {exc}")
    except BrokenPipeError:
        _report("the controller no longer listens")
    except wire.WireError as exc:
        _report(f"the controller uses another protocol: {exc}")
    except Exception:  # the agent must end what it started after any error; the traceback has the error
        import traceback

        traceback.print_exc()
    ignore_signals()
    if survivors := processes.end_descendants():
        _report(f"processes survived SIGKILL: {survivors}")
        code = 1
    if agent:
        agent.close()
    sweep.remove_abandoned_folders()  # those of tasks that were ended in the middle
    return code


def _report(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
