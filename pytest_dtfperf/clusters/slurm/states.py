"""The meaning of Slurm's messages: a job's state, the reason of its wait or end, and srun's messages. Pure.

Slurm's states count last. First come the tasks' own reports, then srun's: a task that ignores SIGTERM makes a cancelled
srun end with code 0, and Slurm notices a disconnected node only after its SlurmdTimeout.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pytest_dtfperf.clusters.slurm import parse
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.formats import join_some

_FEW = 4  # nodes that a message lists one by one


class Phase(Enum):
    """The phase of a job that holds nodes."""

    WAITING = "it has no nodes that could be used yet"
    RUNNING = "its nodes are ours"
    ENDING = "its nodes are being taken back"
    OVER = "its nodes are gone for good"


@dataclass(frozen=True)
class State:
    """The meaning of one of Slurm's states for a job that holds nodes and must not run twice."""

    phase: Phase
    description: str  # after "Slurm job 17"


# Every state, and every flag that is shown as one, of Slurm 20.11 to 25.05. A requeued job is lost: its processes have ended,
# and it would get other nodes.
STATES: Mapping[str, State] = {
    "PENDING": State(Phase.WAITING, "waits for nodes"),
    "CONFIGURING": State(Phase.WAITING, "waits until its nodes have booted"),
    "POWER_UP_NODE": State(Phase.WAITING, "waits until its nodes are powered up"),
    "RUNNING": State(Phase.RUNNING, "is running"),
    "SUSPENDED": State(Phase.RUNNING, "was suspended: its processes are stopped, its nodes work for others"),
    "STOPPED": State(Phase.RUNNING, "was stopped by SIGSTOP, and keeps its nodes"),
    "SIGNALING": State(Phase.RUNNING, "is being sent a signal"),
    "RESIZING": State(Phase.RUNNING, "is being resized"),
    "UPDATE_DB": State(Phase.RUNNING, "is being noted in the accounting"),
    "COMPLETING": State(Phase.ENDING, "is ending"),
    "STAGE_OUT": State(Phase.ENDING, "has ended, and its data are being staged out"),
    "COMPLETED": State(
        Phase.OVER, "ended by itself, as it does when it has heard nothing from pytest for heartbeat_timeout_s seconds"
    ),
    "CANCELLED": State(Phase.OVER, "was cancelled"),
    "FAILED": State(Phase.OVER, "failed"),
    "TIMEOUT": State(Phase.OVER, "reached its time limit"),
    "NODE_FAIL": State(Phase.OVER, "ended: a node failed"),
    "PREEMPTED": State(Phase.OVER, "was preempted: a job of higher priority took its nodes"),
    "BOOT_FAIL": State(Phase.OVER, "ended: its nodes did not boot"),
    "DEADLINE": State(Phase.OVER, "was ended, because it could not end before its deadline"),
    "OUT_OF_MEMORY": State(Phase.OVER, "ran out of memory"),
    "LAUNCH_FAILED": State(Phase.OVER, "could not be started on its nodes"),
    "RECONFIG_FAIL": State(Phase.OVER, "ended: its nodes could not be reconfigured"),
    "REQUEUED": State(Phase.OVER, "was put back into the queue"),
    "REQUEUE_FED": State(Phase.OVER, "was put back into the queue of its federation"),
    "REQUEUE_HOLD": State(Phase.OVER, "was put back into the queue and is held there"),
    "SPECIAL_EXIT": State(Phase.OVER, "was put back into the queue, marked with a special exit, and is held there"),
    "EXPEDITING": State(Phase.OVER, "was put back into the queue to run again soon"),
    "RESV_DEL_HOLD": State(Phase.OVER, "is held, because its reservation was deleted"),
    "REVOKED": State(Phase.OVER, "was taken over by another cluster of its federation"),
}

# The job has its nodes, but nothing runs on them.
STANDSTILL = ("SUSPENDED", "STOPPED")

# Remedies, by state.
_ADVICE = {
    "TIMEOUT": "raise time_limit in clusters.toml",
    "NODE_FAIL": "try again; exclude_nodes in clusters.toml keeps a node out",
    "BOOT_FAIL": "try again; exclude_nodes in clusters.toml keeps a node out",
    "PREEMPTED": "try again, or with another qos or partition in clusters.toml",
    "OUT_OF_MEMORY": "raise memory in clusters.toml, or lower the batch size",
    "RESV_DEL_HOLD": "change reservation in clusters.toml",
    "SUSPENDED": "times measured during a suspension are not valid",
}


def get_phase(state: str) -> Phase:
    """Return the phase of a state. An unknown one keeps the nodes: as long as tasks report, they work."""
    return STATES[state].phase if state in STATES else Phase.WAITING


def describe_state(state: str) -> str:
    """Return the meaning of a state, after "Slurm job 17"."""
    return (
        STATES[state].description
        if state in STATES
        else f"is in a state that Slurm calls {state}, which this version does not know"
    )


def explain_end(job: SlurmJob) -> str:
    """Return why a job lost its nodes: its name, its state, the node, and how to continue."""
    what = f"Slurm job {job.id} {_format_details(job)} ({job.state})"
    return f"{what}: {_ADVICE[job.state]}" if job.state in _ADVICE else what


def explain_unknown(job_id: str) -> str:
    """Return the message for a job that Slurm does not know any more."""
    return f"Slurm job {job_id} has vanished: the controller does not know it. Was its state lost, or was it purged?"


def _format_details(job: SlurmJob) -> str:
    match job.state:
        case "TIMEOUT" if job.time_limit:
            return f"reached its time limit of {job.time_limit}"
        case "CANCELLED" if job.cancelled_by:
            return f"was cancelled by user {job.cancelled_by}"
        case "NODE_FAIL":
            return f"ended: {_format_failed_node(job)} failed"
        case "BOOT_FAIL":
            return f"ended: {_format_failed_node(job)} did not boot"
        case "OUT_OF_MEMORY" if job.nodes:
            return f"ran out of memory on {join_some(job.nodes, _FEW)}"
        case "FAILED":
            return f"failed with {_format_code(job)}{_format_reason(job)}"
    return describe_state(job.state)


def _format_failed_node(job: SlurmJob) -> str:
    if job.failed_node:
        return f"node {job.failed_node}"
    if len(job.nodes) == 1:
        return f"node {job.nodes[0]}"
    return f"a node of {join_some(job.nodes, _FEW)}" if job.nodes else "a node"


def _format_code(job: SlurmJob) -> str:
    return f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}"


def _format_reason(job: SlurmJob) -> str:
    return f", {job.reason}" if job.reason not in ("", "None", "NonZeroExitCode", "RaisedSignal") else ""


class JobOutlook(Enum):
    """Whether waiting can help."""

    WAIT = "others end, a limit is free again, a node comes back"
    HOPELESS = "the request itself breaks a limit, names what is not there, or somebody must act"


@dataclass(frozen=True)
class PendingReason:
    """The meaning of one reason for a job's wait."""

    outlook: JobOutlook
    description: str


# Families of the reasons of Slurm 20.11 to 25.05; the first match counts. Two hundred of them combine a limit (Assoc, QOS,
# Max), a resource (Cpu, GRES, Node, ...) and a range (PerJob, PerUser, Grp, ...): the range decides.
_FAMILIES = (
    (r"(None)?", JobOutlook.WAIT, "Slurm has not looked at it yet"),
    # Resources that become free when other jobs end
    (r"Priority|Resources|SchedDefer|Cleaning|JobArrayTaskLimit|MpiPortsBusy", JobOutlook.WAIT, "others go first"),
    (r"BeginTime|Prolog|FedJobLock", JobOutlook.WAIT, "it is to begin later"),
    (r"Licenses", JobOutlook.WAIT, "all licenses are in use"),
    (r"Dependency", JobOutlook.WAIT, "it depends on another job"),
    (r"Reservation", JobOutlook.WAIT, "its reservation has not begun, or is in use"),
    (r"BurstBuffer(Resources|StageIn)", JobOutlook.WAIT, "its burst buffer is not ready"),
    (r"Power(NotAvail|Reserved)|MaxPoweredUpNodes", JobOutlook.WAIT, "there is not enough power for its nodes"),
    (r"Nodes.required.*|ReqNodeNotAvail.*|.*Required Node not available.*|NodeDown|FrontEndDown", JobOutlook.WAIT,
     "nodes that it needs are down, drained or reserved"),
    (r"Partition(Down|Inactive)", JobOutlook.WAIT, "its partition is closed for now"),
    # Settings that an administrator or the user must change
    (r"JobHeld(User|Admin)|JobHoldMaxRequeue|.*held.*|.*special.exit.*", JobOutlook.HOPELESS, "it is held: see who holds it"),
    (r"DependencyNeverSatisfied", JobOutlook.HOPELESS, "it depends on a job that has failed: see options in clusters.toml"),
    (r"PartitionConfig", JobOutlook.HOPELESS,
     "its partition has no such nodes, not so many, or not for so long: see gpus, partition, gres, time_limit"),
    (r"PartitionNodeLimit", JobOutlook.HOPELESS,
     "its partition does not allocate so many nodes: ask for fewer devices, or see partition in clusters.toml"),
    (r"PartitionTimeLimit", JobOutlook.HOPELESS,
     "its partition does not allocate nodes for so long: lower time_limit in clusters.toml, or see partition"),
    (r"BadConstraints|Constraints", JobOutlook.HOPELESS,
     "no node is as was asked for: see constraint, gres, memory and cpus_per_node in clusters.toml"),
    (r"MaxMemPerLimit", JobOutlook.HOPELESS, "no job may have so much memory: lower memory in clusters.toml"),
    (r"Invalid(Account|QOS)|(Account|QOS)NotAllowed|Job's (account|QOS) not (known|permitted).*", JobOutlook.HOPELESS,
     "this user may not use that account or qos there: see account, qos and partition in clusters.toml"),
    (r"Reservation(Deleted|Invalid)", JobOutlook.HOPELESS, "there is no such reservation: see reservation in clusters.toml"),
    (r"BurstBufferOperation", JobOutlook.HOPELESS, "its burst buffer has failed"),
    # Limits of one job: it exceeds them by itself. QOSMin...: it asks for too little.
    (r"(Assoc|QOS)Max\w*Per(Job|Node)(Limit)?", JobOutlook.HOPELESS,
     "one job may not have so much: ask for fewer devices or less time, or see qos and account in clusters.toml"),
    (r"QOSMin\w+", JobOutlook.HOPELESS, "its qos is for larger jobs: see qos in clusters.toml"),
    # Limits of simultaneous jobs
    (r"(Assoc|QOS)Grp\w*Run(Mins|Minutes)(Limit)?|Max\w+RunMinsPer(User|Account)", JobOutlook.WAIT,
     "the jobs that run have taken what may be asked for at a time"),
    # Budgets, which do not return when jobs end
    (r"(Assoc|QOS)Grp\w*(Minutes|Wall)(Limit)?|(Association|QOS)TimeLimit", JobOutlook.HOPELESS,
     "what is left of the budget does not suffice: ask for fewer devices or less time, or see account and qos"),
    (r"(Assoc|QOS)(Grp|Max)\w+|Max\w+Per(User|Account)|(Association|QOS)(Job|Resource)Limit|AccountingPolicy|QOSUsageThreshold",
     JobOutlook.WAIT, "the user's or the account's other jobs have taken what they may have at a time"),
    # Reasons of an end, not of a wait
    (r"TimeLimit|DeadLine|InactiveLimit|NonZeroExitCode|RaisedSignal|OutOfMemory|JobLaunchFailure|SystemFailure",
     JobOutlook.HOPELESS, "it has ended"),
)  # fmt: skip


def judge_reason(reason: str) -> PendingReason:
    """Return the meaning of a pending job's reason. Details after a comma are ignored; an unknown reason may pass."""
    plain = reason.strip().removeprefix("(").removesuffix(")").replace("_", " ")
    for pattern, found, message in _FAMILIES:
        if re.fullmatch(pattern, plain):
            return PendingReason(found, message)
    return PendingReason(JobOutlook.WAIT, f"Slurm's reason is {reason}, which this version does not know")


_OF_TASKS = re.compile(r"srun: (?:error: )?(\S+): tasks? ([\d,-]+): (.+)")
_FAILED_NODES = re.compile(r"srun: error: (?:Node failure on|Task launch for \S+ failed on node) ([^\s:]+)")
_NOISE = re.compile(r"srun: cluster configuration lacks support for cpu binding|.*can not load PMIx library.*|\s*")


class SrunMessages:
    """The messages of srun itself on its stderr, about single tasks or the whole step."""

    def __init__(self) -> None:
        self.of_all: list[str] = []
        self.failed_nodes: list[str] = []
        self._of_task: dict[int, list[str]] = defaultdict(list)

    def feed(self, line: str) -> None:
        if found := _OF_TASKS.match(line):
            for task in _expand_numbers(found[2]):
                self._of_task[task].append(found[3])
        elif not _NOISE.fullmatch(line):
            self.of_all.append(line)
        if found := _FAILED_NODES.match(line):
            self.failed_nodes += parse.expand_hostlist(found[1])

    @property
    def ended(self) -> set[int]:
        """The tasks with a message of srun, that is, about their end."""
        return set(self._of_task)

    def get_lines(self, task: int) -> list[str]:
        """Return Slurm's messages about a task's end: `Killed`, `Exited with exit code 3`."""
        return list(self._of_task.get(task, ()))


def _expand_numbers(ranges: str) -> list[int]:
    """Expand `0-2,5`."""
    ends = [part.split("-") for part in ranges.split(",") if part]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]
