"""How an instance becomes a trusted host: its keys, its cloud-init configuration and the first login.

Every instance starts with the host key of its run, by which the first login recognises it. Everyone who may read the
instance's user data can read that key. So the first login makes the instance create another host key, and only that
one is trusted from then on. cloud-init also starts the timer that ends the instance, and reports when both are done.
"""

import os
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.children import TooMuchOutput, read_output
from pytest_dtfperf.clusters.ec2.account import iterate_attempts
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint, make_ssh_argv
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.formats import format_count, printable_lines
from pytest_dtfperf.node.files import replace_file

LOGIN_KEY, HOST_KEY = "login", "host"  # the keys of a run, in its folder: for the login, and of the host at the first login


def get_known_hosts_path(folder: Path, instance_id: str) -> Path:
    """Return the file of known hosts of one instance: instances are contacted in parallel."""
    return folder / f"known_hosts.{instance_id}"


def make_endpoint(plan: LaunchPlan, folder: Path, instance: Instance) -> Endpoint:
    """Return the endpoint of one instance. Its key is stored under its id, because addresses are used again."""
    address = instance.public if plan.public else instance.private
    options = (
        *("-F", os.devnull),  # ignore the user's files, which may match such addresses
        *_format_option(f'IdentityFile="{_escape_percent(folder / LOGIN_KEY)}"'),
        *("-p", str(plan.port)),
        *_format_option("IdentitiesOnly=yes"),
        *_format_option("IdentityAgent=none"),
        *_format_option(f"HostKeyAlias={instance.id}"),
        *_format_option(f'UserKnownHostsFile="{_escape_percent(get_known_hosts_path(folder, instance.id))}"'),
        *_format_option(f"GlobalKnownHostsFile={os.devnull}"),
        *_format_option("HostKeyAlgorithms=ssh-ed25519"),
        *_format_option("CheckHostIP=no"),
    )
    return Endpoint(instance.id, f"{plan.user}@{address}", instance.private, options)


def make_endpoints(plan: LaunchPlan, folder: Path, instances: Sequence[Instance]) -> list[Endpoint]:
    """Return the endpoints in launch order."""
    return [make_endpoint(plan, folder, each) for each in sorted(instances, key=lambda each: each.index)]


def _escape_percent(path: Path) -> str:
    """Escape `%`, which ssh would expand."""
    return str(path).replace("%", "%%")


def _format_option(option: str) -> tuple[str, str]:
    return "-o", option


def make_keys(folder: Path, name: str) -> None:
    """Create both key pairs of a run on disk before any request, so that a repeated request is the same."""
    for kind in (LOGIN_KEY, HOST_KEY):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}-{kind}", "-f", str(folder / kind)]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        except FileNotFoundError:
            raise AllocationError(
                "there is no ssh-keygen on this machine: install the OpenSSH client (Debian: openssh-client)"
            ) from None
        except subprocess.CalledProcessError as failed:
            raise AllocationError(f"ssh-keygen cannot make a key in {folder}: {failed.stderr.strip()}") from failed


def read_injected_key(folder: Path) -> str:
    """Return the host key that every instance of the run starts with."""
    return (folder / f"{HOST_KEY}.pub").read_text()


def trust_keys(folder: Path, instance_id: str, *keys: str) -> None:
    """Trust only these keys of an instance from now on. Raises `AllocationError`."""
    lines = dict.fromkeys(f"{instance_id} {' '.join(key.split()[:2])}\n" for key in keys)
    path = get_known_hosts_path(folder, instance_id)
    try:
        with replace_file(path) as file:
            file.write("".join(lines).encode())
    except OSError as exc:
        raise AllocationError(f"{path} cannot be written: {exc.strerror}; make room on that disk") from exc


def is_public_key(line: str) -> bool:
    """Return whether the line is a public key of the type that is created here, and nothing else."""
    parts = line.split()
    return len(parts) >= 2 and parts[0] == "ssh-ed25519" and parts[1].startswith("AAAA")


READY = "/run/dtfperf-ready"
ROTATE = "/usr/local/sbin/dtfperf-host-key"
_KEY = "/etc/ssh/ssh_host_ed25519_key"
_PREPARE = f"test -e {READY} && sudo -n {ROTATE} prepare"

# Both commands can be repeated: a connection may fail before the answer has arrived.
_ROTATE = f"""\
#!/bin/sh
# `prepare` makes a new host key and shows it; `use` makes sshd use that one and no other.
set -e
[ "$1" = use ] && [ -e {_KEY}.new ] && {{
    mv -f {_KEY}.new.pub {_KEY}.pub
    mv -f {_KEY}.new {_KEY}
    : >/run/dtfperf-host-key-is-new
    if [ -e /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; else systemctl reload ssh || systemctl reload sshd; fi
}}
[ -e /run/dtfperf-host-key-is-new ] || [ -e {_KEY}.new ] || ssh-keygen -q -t ed25519 -N '' -C '' -f {_KEY}.new
if [ -e {_KEY}.new ]; then cat {_KEY}.new.pub; else cat {_KEY}.pub; fi
"""

# cloud-init runs the scripts in this folder at every start of the machine: a reboot cancels a scheduled `shutdown`.
TIMER = "/var/lib/cloud/scripts/per-boot/dtfperf-timer"
INSTANCE = "/var/lib/cloud/instance"  # of this instance, not of the one that its image was made from

_TIMER = f"""\
#!/bin/sh
# Given MINUTES, ends this machine when they are over; without, at every further start, when what is left of them is over.
set -e
ends={INSTANCE}/dtfperf-ends # minutes since 1970
if [ "$1" ]; then
    mkdir -p {INSTANCE}
    echo $(($(date +%s) / 60 + $1)) >$ends
fi
[ -s $ends ] || exit 0
left=$(($(cat $ends) - $(date +%s) / 60))
[ "$left" -gt 0 ] || left=0
exec shutdown -h "+$left"
"""

_TEMPLATE = """\
#cloud-config
ssh_deletekeys: true
ssh_keys:
  ed25519_private: |
{private}
  ed25519_public: {public}
write_files:
- path: {rotate}
  permissions: '0755'
  content: |
{script}
- path: {timer}
  permissions: '0755'
  content: |
{timer_script}
runcmd:
- [sh, -c, "{timer} {minutes} && : >{ready}"]
"""


def make_cloud_config(private_key: str, public_key: str, minutes: int) -> str:
    """Return the cloud-config of instances with this host key and lifetime. They report ready once the timer runs."""
    return _TEMPLATE.format(
        private=textwrap.indent(private_key.strip(), "    "),
        public=public_key.strip(),
        rotate=ROTATE,
        script=textwrap.indent(_ROTATE, "    "),
        timer=TIMER,
        timer_script=textwrap.indent(_TIMER, "    "),
        minutes=minutes,
        ready=READY,
    )


BOOT_S = 600.0  # from running to ready: at the first start, an image of 60 GiB is read over the network
AT_ONCE = 16
_CONNECT_S = 10.0
_COMMAND_S = 60.0
_POLL_S = 5.0  # pause between two questions to Amazon whether the instances still exist
_STRANGER_S = 10.0  # for a moment, a machine may show the image's host key instead of the run's
_STATUS_S = 30.0
_DRIVER_S = 10.0
_NO_LINE = 255  # exit code of ssh itself
_STRANGE = ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED")
_OUTPUT_BYTES = 1 << 20  # a banner of some kilobytes is usual
_GPUS = "nvidia-smi --list-gpus | grep -c '^GPU '"


@dataclass(frozen=True)
class Contact:
    """The settings for the first contact with the instances of one run."""

    folder: Path  # of the run's keys
    gpus: int  # required of each; 0: not checked
    boot_s: float
    poll: Callable[[], Mapping[str, Instance]]  # returns the instances as Amazon shows them
    on_status: Callable[[str], object]
    hint: str  # advice for an instance that does not answer

    def contact_all(self, endpoints: Sequence[Endpoint], *, may_lack_hosts: bool = False) -> dict[str, AllocationError]:
        """Contact all endpoints in parallel, and return the errors of those that fail, by name.

        Raises `AllocationError` for the first that fails, or only if all fail with `may_lack_hosts`.
        """
        began, reported_s = time.monotonic(), 0.0
        talks = {each.name: _Talk(each, began + self.boot_s, threading.Event(), self.hint) for each in endpoints}
        failed: dict[str, AllocationError] = {}
        self._end_talks(talks)
        with ThreadPoolExecutor(min(AT_ONCE, len(talks)), thread_name_prefix="dtfperf-contact") as pool:
            try:
                names = {pool.submit(self._connect, talk): name for name, talk in talks.items()}
                waiting = set(names)
                while waiting:
                    done, waiting = wait(waiting, timeout=_POLL_S, return_when=FIRST_EXCEPTION)
                    failed |= {names[each]: error for each in done if (error := _get_failure(each, names[each]))}
                    if failed and (len(failed) == len(talks) or not may_lack_hosts):
                        raise next(iter(failed.values()))
                    if waiting:
                        self._end_talks(talks)
                    if waiting and time.monotonic() - began - reported_s > _STATUS_S:
                        reported_s = time.monotonic() - began
                        self._report_waiting([talks[names[each]] for each in waiting], reported_s)
            finally:  # Ctrl-C too: the pool waits for its threads
                for talk in talks.values():
                    talk.stop.set()
                pool.shutdown(cancel_futures=True)
        return failed

    def _connect(self, talk: "_Talk") -> None:
        """Replace the injected key by the instance's own. Each step can be repeated after a broken connection."""
        name, given = talk.endpoint.name, read_injected_key(self.folder)
        trust_keys(self.folder, name, given)
        own = talk.repeat_until_answer(_PREPARE, is_public_key)
        trust_keys(self.folder, name, given, own)
        talk.repeat_until_answer(f"sudo -n {ROTATE} use", lambda line: line == own)
        trust_keys(self.folder, name, own)
        talk.repeat_until_answer("echo here", lambda line: line == "here")
        if self.gpus:
            self._count_gpus(talk)

    def _count_gpus(self, talk: "_Talk") -> None:
        """Check the number of GPUs. Repeats, because a driver may need a moment."""
        found = "0"
        for _ in iterate_attempts(_DRIVER_S, first_s=1.0):
            found = talk.repeat_until_answer(_GPUS, str.isdecimal, codes=(0, 1))
            if int(found) == self.gpus:
                return
        raise AllocationError(
            f"instance {talk.endpoint.name} shows {format_count(int(found), 'GPU')}, but its type has {self.gpus}: "
            "is NVIDIA's driver in the image? "
            'One without it serves with device = "cpu" only'
        )

    def _end_talks(self, talks: Mapping[str, "_Talk"]) -> None:
        """End the exchange with instances that have ended."""
        for each in self.poll().values():
            if each.runs_no_more and not talks[each.id].stop.is_set():
                talks[each.id].why_stopped = f"is {each.state} before it could be used: {each.reason}"
                talks[each.id].stop.set()

    def _report_waiting(self, waiting: Sequence["_Talk"], waited_s: float) -> None:
        first = waiting[0]
        others = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        self.on_status(f"waiting for {first.endpoint.name}{others} since {waited_s:.0f} s: {first.last_error}")


def _get_failure(contact: Future[None], name: str) -> AllocationError | None:
    """Return the error of an endpoint, with its name. Raises any other exception of the contact."""
    try:
        contact.result()
    except AllocationError as error:
        return AllocationError(str(error), host=name)
    return None


@dataclass
class _Talk:
    """The exchange with one instance, until a deadline."""

    endpoint: Endpoint
    deadline: float
    stop: threading.Event
    hint: str
    last_error: str = "nothing was tried yet"
    why_stopped: str = "is not waited for any more"
    stranger_since: float | None = None

    def repeat_until_answer(self, command: str, is_answer: Callable[[str], bool], codes: Sequence[int] = (0,)) -> str:
        """Repeat a command until the last line of its output is an answer, and return that line."""
        code = _NO_LINE
        for _ in iterate_attempts(max(0.0, self.deadline - time.monotonic()), first_s=0.2, most_s=3.0):
            if self.stop.is_set():
                raise AllocationError(f"instance {self.endpoint.name} {self.why_stopped}")
            code, out, err = self._run(command)
            lines = out.strip().splitlines()
            if code in codes and lines and is_answer(lines[-1].strip()):
                return lines[-1].strip()
            self.last_error = self._get_last_line(code, err or out)
            self._refuse_stranger(err)
        raise AllocationError(
            f"instance {self.endpoint.name} ({self.endpoint.target}) could not be logged in to in time: {self.last_error}"
            + (f". {self.hint}" if code == _NO_LINE else "")
        )

    def _run(self, command: str) -> tuple[int, str, str]:
        process = subprocess.Popen(
            make_ssh_argv(self.endpoint, _CONNECT_S, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is handled by pytest
        )
        deadline = time.monotonic() + _COMMAND_S
        with process:
            try:
                printed = read_output(process, _OUTPUT_BYTES, lambda: time.monotonic() > deadline or self.stop.is_set())
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
        if not any(phrase in output for phrase in _STRANGE):
            self.stranger_since = None
            return
        now = time.monotonic()
        self.stranger_since = self.stranger_since or now
        if now - self.stranger_since > _STRANGER_S:
            raise AllocationError(
                f"what answers for instance {self.endpoint.name} at {self.endpoint.target} does not have the host key that "
                "this run gave it: the image's cloud-init takes no keys, or it is another machine. Nothing was sent to it"
            )

    def _get_last_line(self, code: int, output: str) -> str:
        lines = [line for line in output.strip().splitlines() if line.strip(" @")]
        if code != _NO_LINE:
            return f"it has not finished starting (exit code {code}{': ' + lines[-1] if lines else ''})"
        return lines[-1] if lines else "ssh prints nothing"
