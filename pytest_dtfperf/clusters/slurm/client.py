"""Slurm's commands: run with an environment without a user's options, and with readable errors."""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_dtfperf.clusters.environment import SHARED, TRAINING, select_variables
from pytest_dtfperf.clusters.retry import Result, retry
from pytest_dtfperf.clusters.slurm import parse
from pytest_dtfperf.clusters.slurm.parse import ParseError, SlurmJob
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.backoff import pause_s
from pytest_dtfperf.node.owner import Owner

OUTAGE_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
PAUSE_GROWTH = 1.1  # makes each pause a tenth of the time waited so far: so late a change is noticed, at most
ANSWER_S = 60.0  # a busy controller answers within seconds; clients give up by themselves after some 10 s without one

# Options that a user has set for all jobs (SBATCH_ACCOUNT, SQUEUE_FORMAT), and what the job says that pytest may run in, would
# change what our own arguments mean.
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
    """Slurm's controller does not answer; it may again."""


class NotConfigured(ControllerDown):
    """Slurm's commands do not find their configuration: there is none, or the controller, which has it, does not answer."""


class SlurmClient:
    """Every question and order to Slurm but `srun`, which is a channel."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, wanted: Sequence[str] = ()) -> None:
        """`wanted` are variables that jobs are to have beside the usual.

        Raises `AllocationError` where SLURM_CONF names no file: Slurm's commands look for it for a minute each.
        """
        self.environment = make_environment(os.environ if environment is None else environment, wanted)
        conf = self.environment.get("SLURM_CONF")
        if conf and not os.path.exists(conf):
            raise AllocationError(
                f"SLURM_CONF names {conf}, which is not there. Correct it, or unset it where Slurm needs none"
            )

    @property
    def step_environment(self) -> dict[str, str]:
        """For srun, which says whose it is: should this process and Slurm's controller go at once, nothing else ends it."""
        return {**self.environment, sweep.OWNER: Owner.me().text}

    def submit(self, argv: Sequence[str], script: str) -> str:
        """Submit a batch job; returns its id. Raises `AllocationError` with Slurm's own words where it is refused."""
        try:
            answer = self._ask(argv, script)
        except ControllerDown:
            raise
        except AllocationError as exc:
            raise AllocationError(
                f"{exc}. See the cluster's table in clusters.toml; --dry-run shows the whole command"
            ) from exc
        return answer.strip().partition(";")[0]  # "17;cluster" where there are several clusters

    def job(self, job_id: str) -> SlurmJob | None:
        """The job as Slurm knows it now, or, from its accounting, as it ended; None if it knows of none."""
        found = _parse(parse.parse_scontrol, self._ask(["scontrol", "--oneliner", "show", "job", job_id], or_none=_UNKNOWN_JOB))
        return found[0] if found else self._from_accounting(job_id)

    def queue(self) -> str:
        """What squeue says of this user's jobs, those included that have just ended."""
        return self._ask(["squeue", "--noheader", f"--user={os.getuid()}", "--states=all", f"--format={parse.SQUEUE_FORMAT}"])

    def jobs_of_user(self) -> list[SlurmJob]:
        return parse_queue(self.queue())

    def cancel(self, job_ids: Iterable[str]) -> None:
        """End jobs, whatever their state. It is no error if one has ended already."""
        self._ask(["scancel", "--quiet", *job_ids])

    def cancel_steps(self, job_id: str, name: str) -> None:
        """End a job's steps of that name."""
        text = self._ask(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i %j"], or_none=_UNKNOWN_JOB)
        steps = [step for step, _, its_name in (line.partition(" ") for line in text.splitlines()) if its_name.strip() == name]
        if steps:
            self.cancel(steps)

    def addresses(self, nodes: Sequence[str]) -> dict[str, str]:
        """By which address each node is reached."""
        text = self._ask(["scontrol", "--oneliner", "show", "node", ",".join(nodes)])
        known = {match[1]: match[2] for line in text.splitlines() if (match := _NODE_ADDRESS.search(line))}
        return {node: known.get(node, node) for node in nodes}

    def switches(self) -> dict[str, str]:
        """The leaf switch that each node hangs on; nothing where the cluster does not tell its topology."""
        try:
            return parse.parse_topology(self._ask(["scontrol", "show", "topology"]))
        except (AllocationError, ParseError):  # a plugin without one says so with an error, and it is worth no failure
            return {}

    def _from_accounting(self, job_id: str) -> SlurmJob | None:
        """What sacct remembers, where there is accounting."""
        try:
            shape = ["--parsable2", "--noheader", f"--delimiter={parse.SACCT_DELIMITER}", f"--format={parse.SACCT_FORMAT}"]
            text = self._ask(["sacct", *shape, "--allocations", f"--jobs={job_id}"])
        except AllocationError:  # not installed, or "Slurm accounting storage is disabled"
            return None
        return next(iter(_parse(parse.parse_sacct, text)), None)

    def _ask(self, argv: Sequence[str], script: str = "", *, or_none: re.Pattern[str] | None = None) -> str:
        """What a command prints; nothing if it fails with words that mean that there is nothing."""
        try:
            done = subprocess.run(
                argv,
                input=script,
                capture_output=True,
                encoding="utf-8",
                errors="replace",  # jobs are named by people, on terminals of any kind
                timeout=ANSWER_S,
                env=self.environment,
                check=False,
            )
        except FileNotFoundError as exc:
            raise AllocationError(f"{argv[0]} is not installed here: this machine is no login node of a Slurm cluster") from exc
        except OSError as exc:  # also where there is none, and PATH has a folder that is closed to this user
            why = f"({exc.strerror}): is this machine a login node of a Slurm cluster?"
            raise AllocationError(f"{argv[0]} cannot be started here {why}") from exc
        except subprocess.TimeoutExpired as exc:
            raise ControllerDown(f"{argv[0]} has not answered for {ANSWER_S:g} s") from exc
        if done.returncode == 0:
            return done.stdout
        words = _clean_stderr(done.stderr) or f"exit code {done.returncode}"
        if or_none and or_none.search(words):
            return ""
        raise classify_error(words)(f"{argv[0]}: {words}")


def get_pause_s(attempt: int) -> float:
    """Return how long to wait after so many questions to the controller, in seconds."""
    return pause_s(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S, growth=PAUSE_GROWTH)


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


def classify_error(words: str) -> type[AllocationError]:
    """Of an error, by what one of Slurm's commands has said."""
    return NotConfigured if _UNCONFIGURED.search(words) else ControllerDown if _AWAY.search(words) else AllocationError


def parse_queue(text: str) -> list[SlurmJob]:
    """The jobs that `Client.queue` tells of."""
    return _parse(parse.parse_squeue, text)


def _parse(reader: Callable[[str], list[SlurmJob]], text: str) -> list[SlurmJob]:
    try:
        return reader(text)
    except ParseError as exc:
        raise AllocationError(f"{exc}. This version knows Slurm 20.11 to 24.11") from exc


def _clean_stderr(stderr: str) -> str:
    """What a command has said, in one line, without its name before every part: `sbatch: error: `."""
    lines = (_NAME.sub("", " ".join(line.split())) for line in stderr.splitlines())
    return printable("; ".join(filter(None, lines)))


def make_environment(environment: Mapping[str, str], wanted: Sequence[str] = ()) -> dict[str, str]:
    """An environment in which Slurm's commands do what their arguments say, and print times in seconds since 1970.

    It is a job's, too: sbatch and srun hand on all that they have, and Slurm's controller keeps it like the job. Told less
    by `--export`, Slurm would ask a login shell for the rest; what they do not have, they cannot hand on.
    """
    known = select_variables(environment, SHARED, TRAINING, _KEPT, wanted)
    kept = {name: value for name, value in known.items() if name in _KEPT or not _OPTIONS.match(name)}
    return {**kept, "SLURM_TIME_FORMAT": "%s"}
