"""Slurm's commands: run with an environment without a user's options, and with readable errors."""

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_dtfperf.clusters.environment import SHARED, TRAINING, select_variables
from pytest_dtfperf.clusters.slurm import parse
from pytest_dtfperf.clusters.slurm.parse import ParseError, SlurmJob, SlurmNode
from pytest_dtfperf.clusters.slurm.request import make_drain_command
from pytest_dtfperf.errors import AllocationError, UsageError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.node.retry import Result, compute_pause_s, retry

OUTAGE_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PAUSE_GROWTH = 1.1  # makes each pause a tenth of the time waited so far, which bounds the relative delay
ANSWER_S = 60.0  # a busy controller answers within seconds; clients give up after some 10 s without an answer

# Options that a user has set for all jobs (SBATCH_ACCOUNT, SQUEUE_FORMAT), and variables of the job in which pytest may run,
# would change the meaning of the arguments.
_OPTIONS = re.compile(r"(?:SBATCH|SALLOC|SRUN|SQUEUE|SCANCEL|SACCT|SINFO|SCONTROL|SLURM|SLURMD)_")
_KEPT = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS")
_AWAY = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|slurm backup controller in standby"
    r"|unable to establish con\w+|zero bytes were transmitted|transport endpoint",
    re.IGNORECASE,
)
_UNCONFIGURED = re.compile(r"configuration source|fetch.config", re.IGNORECASE)
_NAME = re.compile(r"^\w+: (?:error: |fatal: )?")
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_NODE_ADDRESS = re.compile(r"\bNodeName=(\S+).*?\bNodeAddr=(\S+)")


class ControllerDown(AllocationError):
    """Slurm's controller does not answer; another try may help."""


class NotConfigured(ControllerDown):
    """Slurm's commands do not find their configuration: there is none, or the controller, which has it, does not answer."""


class SlurmClient:
    """All commands of Slurm except `srun`, which is a channel."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, wanted: Sequence[str] = ()) -> None:
        """Create the client. `wanted` are additional variables for jobs.

        Raises `AllocationError` if SLURM_CONF names no file: Slurm's commands search for it for a minute each.
        """
        self.environment = make_environment(os.environ if environment is None else environment, wanted)
        conf = self.environment.get("SLURM_CONF")
        if conf and not os.path.exists(conf):
            raise AllocationError(
                f"SLURM_CONF names {conf}, which is not there. Correct it, or unset it where Slurm needs none"
            )

    @property
    def step_environment(self) -> dict[str, str]:
        """The environment of srun with its owner: if this process and the controller end at once, the owner identifies srun."""
        return {**self.environment, sweep.OWNER: Owner.read_own().text}

    def submit(self, argv: Sequence[str], script: str) -> str:
        """Submit a batch job, and return its id. Raises `AllocationError` with Slurm's message if it is refused."""
        try:
            answer = self._ask(argv, script)
        except ControllerDown:
            raise
        except AllocationError as exc:
            raise AllocationError(
                f"{exc}. See the cluster's table in clusters.toml; --dry-run shows the whole command"
            ) from exc
        return answer.strip().partition(";")[0]  # "17;cluster" if there are several clusters

    def find_job(self, job_id: str) -> SlurmJob | None:
        """Return the job's present state, or from the accounting its end; None if it is unknown."""
        found = _parse(parse.parse_scontrol, self._ask(["scontrol", "--oneliner", "show", "job", job_id], or_none=_UNKNOWN_JOB))
        return found[0] if found else self._find_in_accounting(job_id)

    def read_queue(self) -> str:
        """Return squeue's output for this user's jobs, including those that have just ended."""
        return self._ask(["squeue", "--noheader", f"--user={os.getuid()}", "--states=all", f"--format={parse.SQUEUE_FORMAT}"])

    def list_jobs(self) -> list[SlurmJob]:
        return parse_queue(self.read_queue())

    def cancel(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs in any state. That one has already ended is no error."""
        self._ask(["scancel", "--quiet", *job_ids])

    def cancel_steps(self, job_id: str, name: str) -> None:
        text = self._ask(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %j"], or_none=_UNKNOWN_JOB)
        steps = [step for step, _, its_name in (line.partition(" ") for line in text.splitlines()) if its_name.strip() == name]
        if steps:
            self.cancel(steps)

    def find_addresses(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the address of each node."""
        text = self._ask(["scontrol", "--oneliner", "show", "node", ",".join(nodes)])
        known = {match[1]: match[2] for line in text.splitlines() if (match := _NODE_ADDRESS.search(line))}
        return {node: known.get(node, node) for node in nodes}

    def find_switches(self) -> dict[str, str]:
        """Return the leaf switch of each node; empty if the cluster does not publish its topology."""
        try:
            return parse.parse_topology(self._ask(["scontrol", "show", "topology"]))
        except (AllocationError, ParseError):  # a plugin without a topology fails, which is no problem here
            return {}

    def list_nodes(self) -> list[SlurmNode]:
        """Return all nodes, once for each partition; none if sinfo does not answer, because nothing depends on them."""
        try:
            return parse.parse_sinfo(self._ask(["sinfo", "--Node", "--noheader", f"--format={parse.SINFO_FORMAT}"]))
        except (AllocationError, ParseError):
            return []

    def check_can_drain(self) -> None:
        """Raise `UsageError` if the controller lets this user drain no node, `AllocationError` if it does not answer."""
        if os.geteuid() == 0:
            return
        user = pwd.getpwuid(os.geteuid()).pw_name
        if re.search(rf"^SlurmUser\s*=\s*{re.escape(user)}\(", self._ask(["scontrol", "show", "config"]), re.MULTILINE):
            return
        try:
            level = self._ask(["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=AdminLevel"]).strip()
        except AllocationError:  # not installed, or without accounting: then there are no operators
            level = ""
        if level not in ("Operator", "Administrator"):
            raise UsageError(
                f"--drain: Slurm lets only root, its own user and operators drain nodes, and {user} is none of these. "
                "Leave out --drain, and give the printed command to an administrator"
            )

    def drain(self, node: str, reason: str) -> None:
        """Give a node no more jobs; those on it go on. Raises `AllocationError` if Slurm refuses."""
        self._ask(make_drain_command(node, reason))

    def _find_in_accounting(self, job_id: str) -> SlurmJob | None:
        """Return the job from sacct; None without accounting."""
        try:
            shape = ["--parsable2", "--noheader", f"--delimiter={parse.SACCT_DELIMITER}", f"--format={parse.SACCT_FORMAT}"]
            text = self._ask(["sacct", *shape, "--allocations", f"--jobs={job_id}"])
        except AllocationError:  # not installed, or "Slurm accounting storage is disabled"
            return None
        return next(iter(_parse(parse.parse_sacct, text)), None)

    def _ask(self, argv: Sequence[str], script: str = "", *, or_none: re.Pattern[str] | None = None) -> str:
        """Return what a command prints; empty if its error means that there is nothing."""
        try:
            done = subprocess.run(
                argv,
                input=script,
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # users choose the jobs' names, in any encoding
                timeout=ANSWER_S,
                env=self.environment,
                check=False,
            )
        except FileNotFoundError as exc:
            raise AllocationError(f"{argv[0]} is not installed here: this machine is no login node of a Slurm cluster") from exc
        except OSError as exc:  # also if it is missing, and PATH has a folder that this user may not read
            why = f"({exc.strerror}): is this machine a login node of a Slurm cluster?"
            raise AllocationError(f"{argv[0]} cannot be started here {why}") from exc
        except subprocess.TimeoutExpired as exc:
            raise ControllerDown(f"{argv[0]} has not answered for {ANSWER_S:g} s") from exc
        if done.returncode == 0:
            return done.stdout
        message = _clean_stderr(done.stderr) or f"exit code {done.returncode}"
        if or_none and or_none.search(message):
            return ""
        raise classify_error(message)(f"{argv[0]}: {message}")


def get_pause_s(attempt: int) -> float:
    """Return the pause in seconds after so many questions to the controller."""
    return compute_pause_s(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S, growth=PAUSE_GROWTH)


def retry_while_down(call: Callable[[], Result], on_status: Callable[[str], object]) -> Result:
    """Return what `call` returns, and repeat it while the controller does not answer: a restart takes minutes.

    Raises `ControllerDown` after `OUTAGE_S`.
    """
    return retry(
        call,
        ControllerDown,
        within_s=OUTAGE_S,
        first_pause_s=FIRST_PAUSE_S,
        longest_pause_s=LONGEST_PAUSE_S,
        growth=PAUSE_GROWTH,
        on_failure=lambda exc: on_status(f"{exc}: asking again for up to {OUTAGE_S / 60:.0f} minutes"),
    )


def classify_error(output: str) -> type[AllocationError]:
    """Return the exception for an error message of Slurm's commands."""
    return NotConfigured if _UNCONFIGURED.search(output) else ControllerDown if _AWAY.search(output) else AllocationError


def parse_queue(text: str) -> list[SlurmJob]:
    """Parse the jobs in the output of `SlurmClient.read_queue`."""
    return _parse(parse.parse_squeue, text)


def _parse(reader: Callable[[str], list[SlurmJob]], text: str) -> list[SlurmJob]:
    try:
        return reader(text)
    except ParseError as exc:
        raise AllocationError(f"{exc}. This version knows Slurm 20.11 to 24.11") from exc


def _clean_stderr(stderr: str) -> str:
    """Return an error message in one line, without the command's name before every part: `sbatch: error: `."""
    lines = (_NAME.sub("", " ".join(line.split())) for line in stderr.splitlines())
    return printable("; ".join(filter(None, lines)))


def make_environment(environment: Mapping[str, str], wanted: Sequence[str]) -> dict[str, str]:
    """Return an environment in which Slurm's commands follow their arguments, and print times in seconds since 1970.

    It is the job's environment, too: sbatch and srun pass it on, and Slurm's controller stores it. With less in `--export`,
    Slurm would start a login shell for the rest.
    """
    known = select_variables(environment, SHARED, TRAINING, _KEPT, wanted)
    kept = {name: value for name, value in known.items() if name in _KEPT or not _OPTIONS.match(name)}
    return {**kept, "SLURM_TIME_FORMAT": "%s"}
