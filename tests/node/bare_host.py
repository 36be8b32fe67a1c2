"""A host with nothing but a Python, controlled by a test: bundles go in, messages of boot and supervisor come out."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pytest_dtfperf.clusters.ssh.bootstrap import LOADER, make_bundle
from pytest_dtfperf.node import boot, processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until


class BareHost:
    """A host on which Python was started with the text of node/boot.py."""

    def __init__(self, home: Path, *through: str, **env: str) -> None:
        """`through` is a command before Python's."""
        self.cache = home / ".cache" / "dtfperf"
        self.process = subprocess.Popen(
            [*through, sys.executable, "-u", "-c", LOADER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "DTFPERF_BOOT": Path(boot.__file__).read_text(), **env},
            cwd=home,
            start_new_session=True,
            bufsize=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        below = processes.list_descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        for each in below:
            processes.kill(each.pid)
        wait_until("all below it is gone", lambda: not any(map(_lives, below)))

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)

    def order(self, **order: Any) -> None:
        self.send(json.dumps(order).encode() + b"\n")

    def header(self, **more: Any) -> None:
        bundle = make_bundle()
        self.order(**{"bundle": bundle.name, "bytes": len(bundle.data), "patience_s": PATIENCE_S, **more})

    def wait_until_ready(self, **more: Any) -> Mapping[str, Any]:
        """Return its message when its supervisor waits for orders."""
        *_, words = self.ready_after(**more)
        assert words["at"] == "ready", words
        return words

    def ready_after(self, **more: Any) -> list[Mapping[str, Any]]:
        """Return all messages until it is ready or has failed; the bundle is sent on request."""
        self.header(**more)
        output: list[Mapping[str, Any]] = []
        while (words := self.next()) is not None:
            if words == {"at": "bundle"}:
                self.send(make_bundle().data)
                continue
            output.append(words)
            if words.get("at") == "ready":
                break
        return output

    def run(self, *argv: str, env: Mapping[str, str] | None = None, **limits: float) -> None:
        self.order(run={"argv": argv, "env": env or {}, **limits})
        assert self.next() == {"at": "started"}

    def line(self) -> str | None:
        """Return the next line on its stdout, or None after its end."""
        assert self.process.stdout
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "it prints nothing"
        line = self.process.stdout.readline().decode()
        return line.rstrip("\n") if line else None

    def next(self) -> Mapping[str, Any] | None:
        """Return its next message; None when it has ended."""
        while (line := self.line()) is not None:
            if line.startswith(boot.MARK):
                words: Mapping[str, Any] = json.loads(line.removeprefix(boot.MARK))
                return words
        return None

    def hang_up(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def wait_for_end(self) -> tuple[int, Mapping[str, Any]]:
        """Return its exit code and its last output, once it has ended."""
        assert self.process.stderr
        self.process.wait(PATIENCE_S)
        os.set_blocking(self.process.stderr.fileno(), False)
        output = (self.process.stderr.read() or b"").decode().splitlines()
        words = [json.loads(line.removeprefix(boot.MARK)) for line in output if line.startswith(boot.MARK)]
        return self.process.returncode, words[-1] if words else {}


def _lives(process: processes.Process) -> bool:
    found = processes.inspect(process.pid)  # the dead may stay for a while, until this machine's first process cares
    return found is not None and found.started == process.started and found.state != "Z"
