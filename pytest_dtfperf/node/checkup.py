"""The host's part of `dtfperf doctor`, `python -m pytest_dtfperf.node.checkup`: run the ordered checks, and report the results.

As with an agent, orders come on stdin, events go to stdout, and stdin carries the heartbeat: at its end, or after
`--heartbeat-timeout-s` without a byte, the checkup ends its processes and exits. Slow checks run in threads, so that beats
continue and clocks are compared without delay.

With `--import-tensorflow PARENT`, it imports TensorFlow on trial, and reports its version and devices.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from pytest_dtfperf.node import boot, interfaces, isolation, links, probes, processes, wire
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.node.processes import Leave, ignore_signals, leave_on_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

BEAT_S = 1.0
_TICK_S = 0.25
_LAST_LINES = 3  # of an import that failed
TRIAL = "--import-tensorflow"  # in place of all other arguments
_STDIN, _STDOUT = 0, 1


class Checkup:
    """The event loop of a checkup, and its orders."""

    def __init__(self, host: int, heartbeat_timeout_s: float) -> None:
        self._host = host
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox = wire.Outbox(_STDOUT)
        self._speaking = threading.Lock()
        self._listener: links.Listener | None = None
        self._written: list[str] = []

    def serve(self) -> NoReturn:
        """Execute orders until `Leave` is raised."""
        self._emit("hello")
        lines = wire.Lines()
        received = beaten = time.monotonic()
        while True:
            if select.select([_STDIN], [], [], _TICK_S)[0]:
                data = os.read(_STDIN, 1 << 16)
                arrived_s = time.time()
                if not data:
                    raise Leave("the controller closed the connection")
                received = time.monotonic()
                for line in lines.feed(data):
                    self._execute(wire.decode(line), arrived_s)
            now = time.monotonic()
            if now - received > self._heartbeat_timeout_s:
                raise Leave(f"no message from the controller for {self._heartbeat_timeout_s:g} s")
            if now - beaten >= BEAT_S:
                self._emit("beat")
                beaten = now
            with self._speaking:
                self._outbox.flush()

    def clean_up(self) -> None:
        """Remove the files that the other hosts had to see."""
        while self._written:
            with suppress(OSError):
                os.unlink(self._written.pop())

    def _execute(self, order: Mapping[str, Any], arrived_s: float) -> None:
        if order["order"] == "clock":  # at once: every delay is uncertainty
            self._emit("clock", round=order["round"], arrived_s=arrived_s, left_s=time.time())
        elif order["order"] != "ping" and self._host in order.get("only", [self._host]):
            threading.Thread(target=self._send_answer, args=(order,), daemon=True).start()

    def _send_answer(self, order: Mapping[str, Any]) -> None:
        try:
            found = ORDERS[order["order"]](self, order)
        except Exception as exc:  # a check that fails must not end the others
            found = {"error": f"{type(exc).__name__}: {exc}"}
        with suppress(BrokenPipeError):  # the loop sees it, too
            self._emit(order["order"], **found)

    def _emit(self, event: str, **data: Any) -> None:
        with self._speaking:
            self._outbox.put(wire.encode({"event": event, "host": self._host, **data}))

    # Orders

    def _facts(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return read_facts()

    def _try_import(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return import_tensorflow(order["within_s"])

    def _write(self, order: Mapping[str, Any]) -> dict[str, Any]:
        path = self._mark(order, self._host)
        with open(path, "x") as file:
            self._written.append(path)
            file.write(f"{order['token']}\n")
            file.flush()
            os.fsync(file.fileno())
        return {}

    def _list_files(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"sees": [host for host in order["hosts"] if os.path.exists(self._mark(order, host))]}

    def _remove(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self.clean_up()
        return {}

    def _mark(self, order: Mapping[str, Any], host: int) -> str:
        return os.path.join(os.path.expanduser(order["folder"]), f".dtfperf-{order['token']}-{host}")

    def _listen(self, order: Mapping[str, Any]) -> dict[str, Any]:
        self._listener = links.Listener(self._host, order["token"], order["ports"])
        mine = has_address(order["addresses"][str(self._host)])
        return {"ports": self._listener.ports, "taken": self._listener.taken, "has_address": mine}

    def _reach(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"reached": links.reach(order["token"], [each for each in order["targets"] if each["host"] != self._host])}

    def _measure(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the link to the target of this host. `pairs` has the target of each sending host."""
        target = order["pairs"][str(self._host)]
        return links.measure(order["token"], target["host"], target["address"], target["port"], order["stream_s"])


ORDERS: Mapping[str, Callable[[Checkup, Mapping[str, Any]], dict[str, Any]]] = {
    "facts": Checkup._facts,
    "trial": Checkup._try_import,
    "write": Checkup._write,
    "list_files": Checkup._list_files,
    "remove": Checkup._remove,
    "listen": Checkup._listen,
    "reach": Checkup._reach,
    "measure": Checkup._measure,
}


def read_facts() -> dict[str, Any]:
    """Return the host's hardware, software and state."""
    load = probes.read_load()  # first, as the other checks cause load
    gpus: list[dict[str, Any]] | None
    try:
        gpus = [{"name": gpu.name, "memory_mib": gpu.memory_mib} for gpu in probes.list_gpus()]
        gpus_error = None
    except probes.GpusUnknown as exc:
        gpus, gpus_error = None, str(exc)
    return {
        "hostname": socket.gethostname(),
        "addresses": [each for found in interfaces.map_addresses().values() for each in found],
        "interfaces": interfaces.list_interfaces(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "tensorflow": probes.find_tensorflow_version(),
        "cores": len(os.sched_getaffinity(0)),
        "machine_cores": os.cpu_count() or 1,
        "load": load,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        "gpus_error": gpus_error,
        "disks": measure_disks(),
        "unisolated": explain_no_isolation(),
        "unguarded": isolation.explain_missing_firewall(),
    }


def explain_no_isolation() -> str | None:
    """Return why tasks cannot have a network of their own, or None. A subprocess tries, because this process has threads."""
    tried = subprocess.run(
        make_module_command(sys.executable, isolation.__name__), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return tried.stderr.decode(errors="replace").strip().rpartition("\n")[2] if tried.returncode else None


def measure_disks() -> list[dict[str, Any]]:
    """Return the space in the folders that a run writes to, or in their nearest parent that exists."""
    cache = os.path.dirname(boot.get_cache_folder())
    found = []
    for what, folder in (("cache", cache), ("temporary files", tempfile.gettempdir())):
        there = folder
        while not os.path.isdir(there) and there != os.path.dirname(there):
            there = os.path.dirname(there)
        usage = shutil.disk_usage(there)
        found.append({"what": what, "folder": folder, "free_bytes": usage.free, "total_bytes": usage.total})
    return found


def has_address(address: str) -> bool:
    """Return whether an interface of this host has the address, or the address of this name. Behind NAT none has."""
    with suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe, suppress(OSError):
                probe.bind(where)
                return True
    return False


def import_tensorflow(within_s: float) -> dict[str, Any]:
    """Import TensorFlow in a process of its own, because an import may take minutes, hang, or crash.

    Returns `version`, `gpus` and `import_s`; after a failure or `within_s` seconds, `error` and the child's `last_lines`.
    """
    command = make_module_command(sys.executable, "pytest_dtfperf.node.checkup", TRIAL, str(os.getpid()))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}  # without its warnings about plugins
    try:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {within_s:g} s", "last_lines": []}
    if ended.returncode == 0:
        return wire.decode(ended.stdout.splitlines()[-1])
    how = f"was killed by signal {-ended.returncode}" if ended.returncode < 0 else "failed"
    lines = [line for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    return {"error": f"the import {how}", "last_lines": lines[-_LAST_LINES:]}


def _report_tensorflow(parent: int) -> NoReturn:
    """Import TensorFlow in this process, and print its version and devices as one line of JSON."""
    processes.die_with(parent)
    began = time.monotonic()
    tensorflow: Any = importlib.import_module("tensorflow")
    took_s = time.monotonic() - began
    gpus = len(tensorflow.config.list_physical_devices("GPU"))
    print(wire.encode({"version": tensorflow.__version__, "gpus": gpus, "import_s": took_s}).decode(), flush=True)
    os._exit(0)  # TensorFlow's own shutdown may take long


def main() -> None:
    if sys.argv[1:2] == [TRIAL]:
        _report_tensorflow(int(sys.argv[2]))
    leave_on_signals()
    processes.adopt_orphans()
    given = {"--heartbeat-timeout-s": "15", "--host": "", **dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))}
    os._exit(_run(int(given["--host"] or os.environ["DTFPERF_HOST_INDEX"]), float(given["--heartbeat-timeout-s"])))


def _run(host: int, heartbeat_timeout_s: float) -> int:
    """Serve until the checkup must leave, and end all its processes. Returns the exit code."""
    checkup = Checkup(host, heartbeat_timeout_s)
    code = 1
    try:
        checkup.serve()
    except Leave as leaving:
        code = 0
        _report(str(leaving))
    except BrokenPipeError:
        _report("the controller no longer listens")
    except wire.WireError as exc:
        _report(f"the controller uses another protocol: {exc}")
    ignore_signals()
    checkup.clean_up()
    processes.end_descendants()
    return code


def _report(text: str) -> None:
    print(f"checkup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
