"""The first word with each instance: it is the one that was launched, it is ready, and it has what its type promises."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.ec2 import trust
from pytest_dtfperf.clusters.ec2.calls import rounds
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.userdata import READY, ROTATE
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint, ssh_argv
from pytest_dtfperf.errors import AllocationError

BOOT_S = 600.0  # from running to ready: an image of 60 GiB is read over the network when it first starts
AT_ONCE = 16
_CONNECT_S = 10.0
_COMMAND_S = 60.0
_LOOK_S = 5.0  # how often Amazon is asked whether those that are waited for are still there
_STRANGER_S = 10.0  # a machine may show the image's key for a moment, before it takes ours
_NO_LINE = 255  # of ssh itself
_STRANGE = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")
_GPUS = "nvidia-smi --list-gpus | grep -c '^GPU '"


@dataclass(frozen=True)
class Contact:
    """What is needed to meet the instances of one run. `look` shows them as Amazon does."""

    folder: Path
    gpus: int  # that each must have; 0: nobody counts
    boot_s: float
    look: Callable[[], Mapping[str, Instance]]

    def all(self, endpoints: Sequence[Endpoint]) -> None:
        """Side by side. Raises `AllocationError` when the first of them cannot be had."""
        stop = threading.Event()
        with ThreadPoolExecutor(min(AT_ONCE, len(endpoints)), thread_name_prefix="dtfperf-contact") as pool:
            try:
                waiting = {pool.submit(self.one, endpoint, stop) for endpoint in endpoints}
                while waiting:
                    done, waiting = wait(waiting, timeout=_LOOK_S)
                    for each in done:
                        each.result()
                    if waiting and not done:
                        self._refuse_ended()
            finally:  # Ctrl-C too: the pool waits for its threads
                stop.set()
                pool.shutdown(cancel_futures=True)

    def one(self, endpoint: Endpoint, stop: threading.Event) -> None:
        """From the injected key to the instance's own. Each step can be repeated: a line may break at any moment."""
        talk = _Talk(endpoint, time.monotonic() + self.boot_s, stop)
        given = trust.injected(self.folder)
        trust.trust(self.folder, endpoint.name, given)
        own = talk.until_it_answers(f"test -e {READY} && sudo -n {ROTATE} prepare", trust.is_key)
        trust.trust(self.folder, endpoint.name, given, own)
        talk.until_it_answers(f"sudo -n {ROTATE} use", lambda line: line == own)
        trust.trust(self.folder, endpoint.name, own)
        found = talk.until_it_answers(_GPUS if self.gpus else "echo 0", str.isdecimal, codes=(0, 1))
        if int(found) != self.gpus:
            raise AllocationError(
                f"instance {endpoint.name} shows {found} GPU(s), but its type has {self.gpus}: is the NVIDIA driver in the "
                'image? An image without one serves with device = "cpu" only'
            )

    def _refuse_ended(self) -> None:
        for each in self.look().values():
            if each.runs_no_more:
                raise AllocationError(f"instance {each.id} is {each.state} before it could be used: {each.reason}")


@dataclass
class _Talk:
    """With one instance, until a time."""

    endpoint: Endpoint
    deadline: float
    stop: threading.Event
    stranger_since: float | None = None

    def until_it_answers(self, command: str, is_answer: Callable[[str], bool], codes: Sequence[int] = (0,)) -> str:
        words = "nothing was tried"
        for _ in rounds(max(0.0, self.deadline - time.monotonic()), first_s=0.2, most_s=3.0):
            if self.stop.is_set():
                raise AllocationError(f"instance {self.endpoint.name} is not waited for any more")
            code, out, err = self._run(command)
            lines = out.strip().splitlines()
            if code in codes and lines and is_answer(lines[-1].strip()):
                return lines[-1].strip()
            words = self._what(code, err or out)
            self._refuse_stranger(err)
        raise AllocationError(
            f"no login to instance {self.endpoint.name} ({self.endpoint.target}) that gets through in time: {words}"
        )

    def _run(self, command: str) -> tuple[int, str, str]:
        process = subprocess.Popen(
            ssh_argv(self.endpoint, _CONNECT_S, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for pytest
        )
        deadline = time.monotonic() + _COMMAND_S
        with process:
            try:
                while time.monotonic() < deadline and not self.stop.is_set():
                    with suppress(subprocess.TimeoutExpired):
                        out, err = process.communicate(timeout=0.5)
                        return process.returncode, out, err
                return _NO_LINE, "", f"nothing came within {_COMMAND_S:g} s"
            finally:
                process.kill()

    def _refuse_stranger(self, said: str) -> None:
        if not any(words in said for words in _STRANGE):
            self.stranger_since = None
            return
        now = time.monotonic()
        self.stranger_since = self.stranger_since or now
        if now - self.stranger_since > _STRANGER_S:
            raise AllocationError(
                f"what answers for instance {self.endpoint.name} at {self.endpoint.target} does not have the host key that "
                "this run gave it: the image's cloud-init takes no keys, or it is another machine. Nothing was sent to it"
            )

    def _what(self, code: int, said: str) -> str:
        lines = [line for line in said.strip().splitlines() if line.strip(" @")]
        if code != _NO_LINE:
            return f"it has not finished starting (exit code {code}{': ' + lines[-1] if lines else ''})"
        return lines[-1] if lines else "ssh says nothing"
