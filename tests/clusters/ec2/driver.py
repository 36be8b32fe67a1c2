"""Sessions that tests kill: `main` forks one for each order, after boto3 was imported.

An order is a line of base64 on stdin: a pickled `Order`, or a `Watch`. It prints lines of JSON: "forked", "up", "failed",
"over" of sessions, and "ended" of each with the exit code (negative: the signal).
"""

import base64
import gc
import json
import os
import pickle
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.ec2 import account, watchdog
from pytest_dtfperf.clusters.ec2.cluster import Ec2
from pytest_dtfperf.clusters.ec2.ledger import Ledger
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import DtfPerfError
from tests.clusters.ec2.mutants import MUTANTS

SERVICES = ("sts", "ec2", "ssm", "pricing", "service-quotas")


@dataclass(frozen=True)
class Order:
    """The work of a session: it allocates instances, and releases them at once or never."""

    config: ClusterConfig
    settle_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    log_in: bool = False  # else the instances are launched without a login
    for_ever: bool = False
    die_before: str | None = None  # a method of the ledger: killed at its call about instances, before it writes
    mutant: str | None = None
    session: str = "20260131T021503Z-9f3c1a"


@dataclass(frozen=True)
class Watch:
    """The work of a watchdog: it waits for a session's last bytes and the end of the connection, and acts on them."""

    ledger: Path
    settle_s: float
    words: bytes
    environment: Mapping[str, str]
    file_bytes: tuple[int, int]  # how long a file of its may become, as RLIMIT_FSIZE has it


def main() -> None:
    _read_descriptions_once()
    children: dict[int, int] = {}  # a descriptor that can be read once it has ended -> its process id
    while True:
        ready, _, _ = select.select([sys.stdin, *children], [], [])
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                break
            order: Order | Watch = pickle.loads(base64.b64decode(line))
            pid = os.fork()
            if pid == 0:
                if isinstance(order, Order):
                    _session(order)
                else:
                    _watch(order)
            children[os.pidfd_open(pid)] = pid
            print_event("forked", pid=pid)
        for end in children.keys() & ready:
            os.close(end)
            pid = children.pop(end)
            print_event("ended", pid=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    for pid in children.values():
        os.kill(pid, signal.SIGKILL)


def _read_descriptions_once() -> None:
    """Those of Amazon's services take a second to read: sessions that are forked have them where accounts look for them."""
    session = account._open_session("us-east-1")
    for service in SERVICES:
        session.client(service)  # type: ignore[call-overload]
    gc.freeze()  # or every session would collect what is not its own, and copy it by doing so


def _session(order: Order) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order.environment)
    if order.mutant:
        MUTANTS[order.mutant](setattr)
    if order.die_before:
        _die_before(order.die_before)
    resources = Resources(devices=2, session=order.session, on_status=lambda words: print_event("words", words=words))
    cluster = Ec2(order.config, settle_s=order.settle_s)
    try:
        with cluster.allocate(resources) if order.log_in else cluster.provide_instances(resources):
            print_event("up")
            while order.for_ever:
                time.sleep(3600)
    except DtfPerfError as failure:
        print_event("failed", words=str(failure))
        os._exit(1)
    print_event("over")
    os._exit(0)


def _watch(order: Watch) -> None:
    reader, writer = os.pipe()
    os.write(writer, order.words)
    os.close(writer)
    os.dup2(reader, 0)
    os.environ.update(order.environment)
    resource.setrlimit(resource.RLIMIT_FSIZE, order.file_bytes)
    with open(0, closefd=False) as sys.stdin:  # the driver's may have read more than this order
        os._exit(watchdog.main([str(order.ledger), "--settle-s", str(order.settle_s)]))


def _die_before(method: str) -> None:
    write = getattr(Ledger, method)

    def die(self: Ledger, kind: str, **what: Any) -> None:
        if kind == "instances":
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, kind, **what)

    setattr(Ledger, method, die)


def print_event(what: str, **more: Any) -> None:
    os.write(1, json.dumps({"what": what, "by": os.getpid(), **more}).encode() + b"\n")
