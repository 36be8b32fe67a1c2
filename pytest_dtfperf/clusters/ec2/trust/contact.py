"""The first word with each instance: it is the one that was launched, it is ready, and it has what its type promises."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.ec2.amazon.calls import attempts
from pytest_dtfperf.clusters.ec2.launch.userdata import READY, ROTATE
from pytest_dtfperf.clusters.ec2.run.instances import Instance
from pytest_dtfperf.clusters.ec2.trust import trust
from pytest_dtfperf.clusters.pipes import TooMuchOutput, output_of
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint, ssh_argv
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.formats import counted, printable_lines

BOOT_S = 600.0  # from running to ready: an image of 60 GiB is read over the network when it first starts
AT_ONCE = 16
_CONNECT_S = 10.0
_COMMAND_S = 60.0
_POLL_S = 5.0  # how often Amazon is asked whether those that are waited for are still there
_STRANGER_S = 10.0  # a machine may show the image's key for a moment, before it takes ours
_STATUS_S = 30.0
_DRIVER_S = 10.0
_NO_LINE = 255  # of ssh itself
_STRANGE = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")
_OUTPUT_BYTES = 1 << 20  # a banner of some kilobytes is usual
_GPUS = "nvidia-smi --list-gpus | grep -c '^GPU '"


@dataclass(frozen=True)
class Contact:
    """What is needed to meet the instances of one run."""

    folder: Path  # of its keys
    gpus: int  # that each must have; 0: nobody counts
    boot_s: float
    poll: Callable[[], Mapping[str, Instance]]  # shows them as Amazon does
    on_status: Callable[[str], object]
    hint: str  # what to look at when one does not answer at all

    def all(self, endpoints: Sequence[Endpoint]) -> None:
        """Side by side. Raises `AllocationError` when the first of them cannot be had."""
        stop, began, told = threading.Event(), time.monotonic(), 0.0
        talks = [_Talk(endpoint, began + self.boot_s, stop, self.hint) for endpoint in endpoints]
        with ThreadPoolExecutor(min(AT_ONCE, len(talks)), thread_name_prefix="dtfperf-contact") as pool:
            try:
                waiting = {pool.submit(self._connect, talk) for talk in talks}
                while waiting:
                    done, waiting = wait(waiting, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
                    for each in done:
                        each.result()
                    if waiting:
                        self._refuse_ended()
                    if waiting and time.monotonic() - began - told > _STATUS_S:
                        told = time.monotonic() - began
                        self._report_waiting([talk for talk in talks if not talk.is_over], told)
            finally:  # Ctrl-C too: the pool waits for its threads
                stop.set()
                pool.shutdown(cancel_futures=True)

    def _connect(self, talk: "_Talk") -> None:
        """From the injected key to the instance's own. Each step can be repeated: a line may break at any moment."""
        name, given = talk.endpoint.name, trust.read_injected_key(self.folder)
        trust.trust_keys(self.folder, name, given)
        own = talk.until_it_answers(f"test -e {READY} && sudo -n {ROTATE} prepare", trust.is_public_key)
        trust.trust_keys(self.folder, name, given, own)
        talk.until_it_answers(f"sudo -n {ROTATE} use", lambda line: line == own)
        trust.trust_keys(self.folder, name, own)
        talk.until_it_answers("echo here", lambda line: line == "here")
        if self.gpus:
            self._count_gpus(talk)
        talk.is_over = True

    def _count_gpus(self, talk: "_Talk") -> None:
        """A driver may need a moment."""
        found = "0"
        for _ in attempts(_DRIVER_S, first_s=1.0):
            found = talk.until_it_answers(_GPUS, str.isdecimal, codes=(0, 1))
            if int(found) == self.gpus:
                return
        raise AllocationError(
            f"instance {talk.endpoint.name} shows {counted(int(found), 'GPU')}, but its type has {self.gpus}: "
            "is NVIDIA's driver in the image? "
            'One without it serves with device = "cpu" only'
        )

    def _refuse_ended(self) -> None:
        for each in self.poll().values():
            if each.runs_no_more:
                raise AllocationError(f"instance {each.id} is {each.state} before it could be used: {each.reason}")

    def _report_waiting(self, waiting: Sequence["_Talk"], waited_s: float) -> None:
        first = waiting[0]
        others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        self.on_status(f"waiting for {first.endpoint.name}{others} since {waited_s:.0f} s: {first.words}")


@dataclass
class _Talk:
    """With one instance, until a time."""

    endpoint: Endpoint
    deadline: float
    stop: threading.Event
    hint: str
    words: str = "nothing was tried yet"  # why it has not worked so far
    is_over: bool = False
    stranger_since: float | None = None

    def until_it_answers(self, command: str, is_answer: Callable[[str], bool], codes: Sequence[int] = (0,)) -> str:
        """The last line of what a command prints, once that is an answer."""
        code = _NO_LINE
        for _ in attempts(max(0.0, self.deadline - time.monotonic()), first_s=0.2, most_s=3.0):
            if self.stop.is_set():
                raise AllocationError(f"instance {self.endpoint.name} is not waited for any more")
            code, out, err = self._run(command)
            lines = out.strip().splitlines()
            if code in codes and lines and is_answer(lines[-1].strip()):
                return lines[-1].strip()
            self.words = self._what(code, err or out)
            self._refuse_stranger(err)
        raise AllocationError(
            f"instance {self.endpoint.name} ({self.endpoint.target}) could not be logged in to in time: {self.words}"
            + (f". {self.hint}" if code == _NO_LINE else "")
        )

    def _run(self, command: str) -> tuple[int, str, str]:
        process = subprocess.Popen(
            ssh_argv(self.endpoint, _CONNECT_S, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for pytest
        )
        deadline = time.monotonic() + _COMMAND_S
        with process:
            try:
                printed = output_of(process, _OUTPUT_BYTES, lambda: time.monotonic() > deadline or self.stop.is_set())
                if printed is None:
                    return _NO_LINE, "", f"nothing came within {_COMMAND_S:g} s"
                out, err = (printable_lines(each.decode(errors="replace")) for each in printed)
                return process.wait(timeout=max(1.0, deadline - time.monotonic())), out, err
            except subprocess.TimeoutExpired:
                return _NO_LINE, "", f"it closed its output, and did not end within {_COMMAND_S:g} s"
            except TooMuchOutput:
                return _NO_LINE, "", f"it printed more than {_OUTPUT_BYTES >> 10} KiB to one short command"
            finally:
                process.kill()

    def _refuse_stranger(self, output: str) -> None:
        if not any(words in output for words in _STRANGE):
            self.stranger_since = None
            return
        now = time.monotonic()
        self.stranger_since = self.stranger_since or now
        if now - self.stranger_since > _STRANGER_S:
            raise AllocationError(
                f"what answers for instance {self.endpoint.name} at {self.endpoint.target} does not have the host key that "
                "this run gave it: the image's cloud-init takes no keys, or it is another machine. Nothing was sent to it"
            )

    def _what(self, code: int, output: str) -> str:
        lines = [line for line in output.strip().splitlines() if line.strip(" @")]
        if code != _NO_LINE:
            return f"it has not finished starting (exit code {code}{': ' + lines[-1] if lines else ''})"
        return lines[-1] if lines else "ssh says nothing"
