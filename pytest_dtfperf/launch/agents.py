"""The agents on an allocation's hosts: orders to them, and their events.

A channel carries every line to every host. So an order contains the data common to all tasks (the training, all addresses)
once, and each agent picks the part for its own host.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from pytest_dtfperf.clusters.environment import TRAINING, select_variables
from pytest_dtfperf.clusters.named import ClusterConfig, get_python
from pytest_dtfperf.clusters.placement import WORKERS_LEAD, HostView, PlacedTask, Roles
from pytest_dtfperf.clusters.protocol import PING_S, Allocation, Host, LossReason, Lost, get_clock
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.errors import AllocationError, HostLost, SpecError
from pytest_dtfperf.launch.exposure import NetworkInterface, choose_interface
from pytest_dtfperf.launch.watch import AgentLoss, Event, format_loss
from pytest_dtfperf.messages import MessageError, MessageReceiver
from pytest_dtfperf.messages.agent import AGENT, HelloMessage
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.spec import Spec, tables
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER

POLL_S = 0.1  # delay in noticing a deadline; events are received at once
VIRTUAL_POLL_S = 5.0  # the same on a virtual clock, where each wait takes real time, however long it is


class Agents:
    """One agent per host.

    A thread sends their heartbeat as long as this process runs, also between two runs: a user may spend minutes in a
    debugger. The thread stops with the process, so that a stopped pytest loses its hosts.
    """

    def __init__(self, allocation: Allocation, config: ClusterConfig) -> None:
        argv = make_module_command(get_python(config), "pytest_dtfperf.node.agent", "--entry", config.entry)
        argv += ["--heartbeat-timeout-s", str(config.heartbeat_timeout_s), "--start", config.start]
        argv += ["--device", config.device] if config.device else []
        if config.container:
            argv[0] = config.container_python
            argv = make_module_command(get_python(config), "pytest_dtfperf.node.container", config.container, *argv)
        self._names = [host.name for host in allocation.hosts]
        self.clock = get_clock(allocation)
        self._receiver = MessageReceiver(AGENT, len(self._names), self.clock)
        self._given_up: set[int] = set()  # hosts that violated the protocol
        self._over = threading.Event()
        self._channel = allocation.start(argv)
        self._pulse = threading.Thread(target=self._send_heartbeats, name="dtfperf-heartbeat", daemon=True)
        self._pulse.start()
        try:
            hellos = self._hello(config.limits.hello_s)
            self.hosts = [_make_view(*each, config) for each in zip(allocation.hosts, hellos, strict=True)]
        except BaseException:  # Ctrl-C too: nothing else ends the agents yet
            self.close()
            raise
        self.fingerprints = [
            _make_fingerprint(hello, view, host.fingerprint)
            for host, hello, view in zip(allocation.hosts, hellos, self.hosts, strict=True)
        ]

    @property
    def poll_s(self) -> float:
        """Return the longest wait for an event before deadlines are checked."""
        return VIRTUAL_POLL_S if self.clock.is_virtual else POLL_S

    def order(self, order: str, **data: Any) -> None:
        """Send an order to every agent. Raises `HostLost` when none is left."""
        self._channel.send(wire.encode({"order": order, **data}))

    def expect(self, run: str, tasks: Mapping[str, int], tunnel: int | None = None) -> None:
        """Accept from now on only events of a new run, of these tasks on these hosts, and of a tunnel to one of them."""
        self._receiver.expect(run, tasks, tunnel)

    def wait_for_event(self, timeout_s: float) -> Event | None:
        """Return the next event, or None after `timeout_s`. The loss of a host is an event, too, and its last one."""
        deadline = self.clock() + timeout_s
        while (arrived := self._channel.receive(max(0.0, deadline - self.clock()))) is not None:
            host, line = arrived
            if host in self._given_up:
                if self.clock() < deadline:
                    continue
                return None  # such a host may send without end
            if isinstance(line, Lost):
                return AgentLoss(host, line, self._receiver.last_lines(host))
            try:
                if (event := self._receiver.receive(host, line)) is not None:
                    return event
            except MessageError as exc:
                return self.give_up(host, str(exc))
        return None

    def give_up(self, host: int, why: str) -> AgentLoss:
        """Ignore a host from now on that violated the protocol, and return its loss."""
        self._given_up.add(host)
        return AgentLoss(host, Lost(LossReason.PROTOCOL_ERROR, why), ())

    def explain_silence(self, host: int) -> AgentLoss | None:
        """Return the loss of a host that has been silent for too long, if the cluster knows of it."""
        how = self._channel.explain_silence(host)
        return AgentLoss(host, how, self._receiver.last_lines(host)) if how else None

    def are_well(self) -> bool:
        """Return whether all agents are still there, between two runs: a pytest that was stopped for a while has lost them."""
        while event := self.wait_for_event(0.0):
            if isinstance(event, AgentLoss):
                return False
        return not self._given_up

    def close(self) -> None:
        self._over.set()
        self._channel.close()
        self._pulse.join()

    def _send_heartbeats(self) -> None:
        with suppress(HostLost):  # the thread that receives events raises it, too
            while not self._over.wait(PING_S):
                self.order("ping")

    def _hello(self, within_s: float) -> list[HelloMessage]:
        hellos: dict[int, HelloMessage] = {}
        deadline = self.clock() + within_s
        while len(hellos) < len(self._names):
            event = self.wait_for_event(max(0.0, deadline - self.clock()))
            if event is None:
                missing = [name for host, name in enumerate(self._names) if host not in hellos]
                raise AllocationError(f"no word within {within_s:g} s from the agent on {', '.join(missing)}", hosts=missing)
            if isinstance(event, AgentLoss):
                raise AllocationError(
                    format_loss(self._names[event.host], "did not start", event.loss, event.last_lines),
                    host=self._names[event.host],
                )
            if isinstance(event, HelloMessage):
                hellos[event.host] = event
        return [hellos[host] for host in range(len(self._names))]


def _make_view(host: Host, hello: HelloMessage, config: ClusterConfig) -> HostView:
    """Return a host as its agent reports it. Raises `AllocationError` if it does not have this interface."""
    name, address, variables = None, host.address, {}
    if config.interface:
        found, address = choose_interface(host.name, config.interface, _list_interfaces(hello))
        name, given = found.name, select_variables(os.environ, TRAINING, config.environment)
        variables = {each: name for each in OF_INTERFACE if each not in given}
    return HostView(
        host.name,
        address,
        tuple(hello.cpus),
        tuple(hello.gpus),
        host.switch,
        tuple(hello.addresses),
        hello.unguarded,
        name,
        tuple(variables.items()),
        hello.boot,
    )


def _make_fingerprint(hello: HelloMessage, host: HostView, known: Fingerprint) -> Fingerprint:
    """Return what a host reports and what its cluster knows of it. The interconnect is the interface that tasks use, if set."""
    reported = hello.fingerprint
    used = next((each for each in _list_interfaces(hello) if each.name == host.interface), None)
    interconnect = {"interconnect": used.speed} if used else {}
    return Fingerprint(
        hardware=Hardware.from_json({**reported.hardware.to_json(), **interconnect, **known.hardware.to_json()}),
        software={**reported.software.to_json(), **known.software},
        state=reported.state,
    )


def _list_interfaces(hello: HelloMessage) -> list[NetworkInterface]:
    return [NetworkInterface.from_message(each) for each in hello.interfaces]


CHIEF = "worker:0"
# GPU 0 is the one that nvidia-smi, and so the agent, calls 0, independent of the host's own environment.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# Libraries that open connections of their own choose an interface by these. A value of the user goes first.
OF_INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def group_tasks_by_host(tasks: Sequence[PlacedTask]) -> dict[int, list[PlacedTask]]:
    """Return the tasks of each host that has some, in the order of their ports."""
    found: dict[int, list[PlacedTask]] = {}
    for task in tasks:
        found.setdefault(task.host, []).append(task)
    return found


def reserve_order(
    tasks: Sequence[PlacedTask], *, fixed_ports: bool, isolated: bool, peers: Sequence[str] | None
) -> dict[str, Any]:
    """Return the order to reserve ports on each host: so many, or these, and the peers that may reach them."""
    return {
        "hosts": {
            str(host): {"ports": [task.fixed_port for task in on_host]} if fixed_ports else {"count": len(on_host)}
            for host, on_host in group_tasks_by_host(tasks).items()
        },
        "isolated": isolated,
        "peers": peers,
    }


def make_task_addresses(
    tasks: Sequence[PlacedTask], hosts: Sequence[HostView], ports: Mapping[int, Sequence[int]]
) -> dict[str, list[str]]:
    """Return job -> "address:port" of each of its tasks, by their index."""
    reserved = {
        task.name: f"{_format_host(hosts[host].address)}:{port}"
        for host, on_host in group_tasks_by_host(tasks).items()
        for task, port in zip(on_host, ports[host], strict=True)
    }
    jobs = dict.fromkeys(task.job for task in tasks)
    return {job: [reserved[task.name] for task in tasks if task.job == job] for job in jobs}


def _format_host(address: str) -> str:
    """Return an address as it is written before a colon and a port (RFC 3986): one of IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def start_order(
    tasks: Sequence[PlacedTask],
    hosts: Sequence[HostView],
    *,
    run: str,
    spec: Spec,
    cluster: Mapping[str, Sequence[str]],
    cold: bool,
    isolated: bool,
    injected_slowdowns: Mapping[str, float] = MappingProxyType({}),
    checkpoint: str | None = None,
    traced_steps: int = 0,
    timestamped: Sequence[bool] = (True,),
    streams: bool = False,
    roles: Roles = WORKERS_LEAD,
    tunnel: int | None = None,
) -> dict[str, Any]:
    """Return the order to start every task of a run. A task gets the common part with its own (a `TaskOrder`).

    Args:
        tunnel: the number of the host that a tunnel leads to.
    """
    return {
        "tunnel": tunnel,
        "cold": cold or _is_cold_start(spec),
        "isolated": isolated,
        "free_ports": bool(spec.command),  # so that programs can bind them without SO_REUSEPORT
        "common": {
            "run": run,
            "spec": spec.to_json(),
            **_encode_own_model(spec),
            "cluster": cluster,
            "traced_steps": traced_steps,
            "timestamped": list(timestamped),
            "streams": streams,
            "grace_s": roles.grace_s,
        },
        "env": {**_make_environment(spec), **GPU_ORDER},
        "tasks": [
            {
                "host": task.host,
                "task": task.name,
                "order": {
                    **_make_own_order(task, injected_slowdowns.get(task.name, 0.0), checkpoint if task.name == CHIEF else None),
                    "stays": roles.is_kept(task),
                },
                # CUDA_VISIBLE_DEVICES: empty, not absent: absent means all of them
                "env": {**_make_host_environment(hosts[task.host], spec), "CUDA_VISIBLE_DEVICES": ",".join(task.gpus)},
                # Where a task may use all cores none is listed: they can be hundreds.
                "cpus": [] if task.cpus == hosts[task.host].cpus or not spec.cpu_affinity else list(task.cpus),
            }
            for task in tasks
        ],
    }


def make_task_order(task: PlacedTask, run: str, spec: Spec) -> dict[str, Any]:
    """Return the order of a single task."""
    return {"run": run, "spec": spec.to_json(), **_encode_own_model(spec), "cluster": {}, **_make_own_order(task, 0.0, None)}


def _encode_own_model(spec: Spec) -> dict[str, Any]:
    """Return the code of a model that is in no table. Raises `SpecError` if this process does not have it."""
    if not spec.own_model:
        return {}
    if (found := tables.find_own_model(spec.model)) is None:
        raise SpecError(f"{spec.model} is a model of the tests that measured it: give train() the model itself")
    return {"own": found.to_json()}


def _make_environment(spec: Spec) -> dict[str, str]:
    """Return the environment of every task. The task of an external command makes the command's own."""
    if spec.command:
        return {}
    variables = dict(assignment.split("=", 1) for assignment in spec.environment)
    if spec.onednn is not None:
        variables["TF_ENABLE_ONEDNN_OPTS"] = str(int(spec.onednn))
    return variables


def _make_host_environment(host: HostView, spec: Spec) -> dict[str, str]:
    """Return the variables of a host's tasks, but those that the spec sets."""
    of_spec = {assignment.partition("=")[0] for assignment in spec.environment}
    return {name: value for name, value in host.environment if name not in of_spec}


def _is_cold_start(spec: Spec) -> bool:
    """Return whether a task's environment may be read while TensorFlow is imported: then no zygote can be forked.

    TF_ENABLE_ONEDNN_OPTS is read then, and there is no list of the others. NCCL reads its own variables when it is first used,
    and this package its own when a producer is started.
    """
    return any(not name.startswith(("NCCL_", ZMQ_PRODUCER)) for name in _make_environment(spec))


def _make_own_order(task: PlacedTask, sleep_s: float, checkpoint: str | None) -> dict[str, Any]:
    return {
        "job": task.job,
        "index": task.index,
        "device": task.device,
        "num_devices": task.num_devices,
        "threads": task.threads,
        "sleep_s": sleep_s,
        "checkpoint": checkpoint,
    }
