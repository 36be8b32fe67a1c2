"""The meaning of Slurm's states and reasons, row by row."""

import re
from typing import Any

import pytest

from pytest_dtfperf.clusters.slurm import states
from pytest_dtfperf.clusters.slurm.parse import SlurmJob
from pytest_dtfperf.clusters.slurm.states import STATES, JobOutlook, Phase, SrunMessages

PHASES = {
    Phase.WAITING: "PENDING CONFIGURING POWER_UP_NODE",
    Phase.RUNNING: "RUNNING SUSPENDED STOPPED SIGNALING RESIZING UPDATE_DB",
    Phase.ENDING: "COMPLETING STAGE_OUT",
    Phase.OVER: (
        "COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY LAUNCH_FAILED RECONFIG_FAIL "
        "REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT EXPEDITING RESV_DEL_HOLD REVOKED"
    ),
}


@pytest.mark.parametrize(("phase", "word"), [(phase, word) for phase, words in PHASES.items() for word in words.split()])
def test_states_have_a_phase(phase: Phase, word: str) -> None:
    """Each of Slurm's states has a phase of the nodes, and a message."""
    assert states.get_phase(word) is phase
    assert states.describe_state(word)[0].islower()


def test_every_state_is_in_the_table_above() -> None:
    """The table of this test has all states."""
    assert set(STATES) == set(" ".join(PHASES.values()).split())


def test_unknown_state_is_no_end() -> None:
    """An unknown state of a later Slurm loses no nodes, and is shown unchanged."""
    assert states.get_phase("PONDERING") is Phase.WAITING
    assert states.describe_state("PONDERING") == "is in a state that Slurm calls PONDERING, which this version does not know"


WAIT = """
None Priority Resources SchedDefer BeginTime Cleaning Prolog FedJobLock JobArrayTaskLimit MpiPortsBusy Licenses Dependency
Reservation BurstBufferResources BurstBufferStageIn PowerNotAvail PowerReserved MaxPoweredUpNodes ReqNodeNotAvail NodeDown
FrontEndDown PartitionDown PartitionInactive AssociationJobLimit AssociationResourceLimit QOSJobLimit QOSResourceLimit
QOSUsageThreshold AccountingPolicy QOSGrpCpuLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit QOSGrpSubmitJobsLimit
QOSGrpUnknown QOSGrpEnergy QOSGrpGRES QOSGrpLicense QOSGrpBB QOSGrpBilling QOSGrpCPURunMinutesLimit QOSGrpUnknownRunMinutes
QOSGrpMemoryRunMinutes QOSGrpNodeRunMinutes QOSGrpEnergyRunMinutes QOSGrpGRESRunMinutes QOSGrpLicenseRunMinutes
QOSGrpBBRunMinutes QOSGrpBillingRunMinutes QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMaxUnknownPerUser QOSMaxMemoryPerUser QOSMaxEnergyPerUser QOSMaxGRESPerUser
QOSMaxLicensePerUser QOSMaxBBPerUser QOSMaxBillingPerUser AssocGrpCpuLimit AssocGrpJobsLimit AssocGrpMemLimit
AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpUnknown AssocGrpEnergy AssocGrpGRES AssocGrpLicense AssocGrpBB
AssocGrpBilling AssocGrpCPURunMinutesLimit AssocGrpUnknownRunMinutes AssocGrpMemRunMinutes AssocGrpNodeRunMinutes
AssocGrpEnergyRunMinutes AssocGrpGRESRunMinutes AssocGrpLicenseRunMinutes AssocGrpBBRunMinutes AssocGrpBillingRunMinutes
AssocMaxJobsLimit AssocMaxSubmitJobLimit MaxBBPerAccount MaxCpuPerAccount MaxEnergyPerAccount MaxGRESPerAccount
MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount MaxUnknownPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount
MaxBillingPerAccount MaxBBRunMinsPerAccount MaxBillingRunMinsPerAccount MaxCpuRunMinsPerAccount MaxEnergyRunMinsPerAccount
MaxGRESRunMinsPerAccount MaxNodeRunMinsPerAccount MaxLicenseRunMinsPerAccount MaxMemoryRunMinsPerAccount
MaxUnknownRunMinsPerAccount MaxBBRunMinsPerUser MaxBillingRunMinsPerUser MaxCpuRunMinsPerUser MaxEnergyRunMinsPerUser
MaxGRESRunMinsPerUser MaxNodeRunMinsPerUser MaxLicenseRunMinsPerUser MaxMemoryRunMinsPerUser MaxUnknownRunMinsPerUser
"""
HOPELESS = """
PartitionNodeLimit PartitionTimeLimit PartitionConfig JobHeldAdmin JobHeldUser JobHoldMaxRequeue DependencyNeverSatisfied
BadConstraints Constraints InvalidAccount InvalidQOS QOSNotAllowed AccountNotAllowed ReservationDeleted ReservationInvalid
MaxMemPerLimit BurstBufferOperation AssociationTimeLimit QOSTimeLimit QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit
QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit QOSMaxUnknownPerJob QOSMaxUnknownPerNode QOSMaxUnknownMinutesPerJob
QOSMaxCpuPerNode QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryMinutesPerJob QOSMaxNodeMinutesPerJob QOSMaxEnergyPerJob
QOSMaxEnergyPerNode QOSMaxEnergyMinutesPerJob QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESMinutesPerJob QOSMaxLicensePerJob
QOSMaxLicenseMinutesPerJob QOSMaxBBPerJob QOSMaxBBPerNode QOSMaxBillingPerJob QOSMaxBillingPerNode QOSMaxBillingMinutesPerJob
QOSMinCpuNotSatisfied QOSMinUnknown QOSMinMemory QOSMinNode QOSMinEnergy QOSMinGRES QOSMinLicense QOSMinBB QOSMinBilling
AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit
AssocMaxUnknownPerJob AssocMaxUnknownPerNode AssocMaxUnknownMinutesPerJob AssocMaxCpuPerNode AssocMaxMemPerJob
AssocMaxMemPerNode AssocMaxMemMinutesPerJob AssocMaxNodeMinutesPerJob AssocMaxEnergyPerJob AssocMaxEnergyPerNode
AssocMaxEnergyMinutesPerJob AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxGRESMinutesPerJob AssocMaxLicensePerJob
AssocMaxLicenseMinutesPerJob AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBBMinutesPerJob AssocMaxBillingPerJob
AssocMaxBillingPerNode AssocMaxBillingMinutesPerJob QOSGrpCPUMinutesLimit QOSGrpWallLimit QOSGrpUnknownMinutes
QOSGrpMemoryMinutes QOSGrpNodeMinutes QOSGrpEnergyMinutes QOSGrpGRESMinutes QOSGrpLicenseMinutes QOSGrpBBMinutes
QOSGrpBillingMinutes AssocGrpCPUMinutesLimit AssocGrpWallLimit AssocGrpUnknownMinutes AssocGrpMemMinutes AssocGrpNodeMinutes
AssocGrpEnergyMinutes AssocGrpGRESMinutes AssocGrpLicenseMinutes AssocGrpBBMinutes AssocGrpBillingMinutes SystemFailure
JobLaunchFailure NonZeroExitCode RaisedSignal TimeLimit InactiveLimit OutOfMemory DeadLine
"""
SENTENCES = [  # what squeue prints instead of a word
    ("", JobOutlook.WAIT, "has not looked"),
    ("ReqNodeNotAvail, UnavailableNodes:n[3-4]", JobOutlook.WAIT, "down, drained or reserved"),
    ("ReqNodeNotAvail, May be reserved for other job", JobOutlook.WAIT, "down, drained or reserved"),
    ("ReqNodeNotAvail, Reserved for maintenance", JobOutlook.WAIT, "down, drained or reserved"),
    ("ReqNodeNotAvail,_UnavailableNodes:n2", JobOutlook.WAIT, "down, drained or reserved"),
    (
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
        JobOutlook.WAIT,
        "down, drained or reserved",
    ),
    ("launch failed requeued held", JobOutlook.HOPELESS, "is held"),
    ("launch_failed_requeued_held", JobOutlook.HOPELESS, "is held"),
    ("job requeued in held state", JobOutlook.HOPELESS, "is held"),
    ("job requeued in special exit state", JobOutlook.HOPELESS, "is held"),
    ("(Priority)", JobOutlook.WAIT, "others go first"),
    ("MoonInTheWrongHouse", JobOutlook.WAIT, "Slurm's reason is MoonInTheWrongHouse, which this version does not know"),
]


@pytest.mark.parametrize(
    ("outlook", "reason"),
    [(JobOutlook.WAIT, each) for each in WAIT.split()] + [(JobOutlook.HOPELESS, each) for each in HOPELESS.split()],
)
def test_reasons_have_an_outlook(outlook: JobOutlook, reason: str) -> None:
    """Each of Slurm's reasons has an outlook: limits of one job cannot be waited out, limits of several can."""
    found = states.judge_reason(reason)
    assert found.outlook is outlook
    assert "does not know" not in found.description


@pytest.mark.parametrize(("reason", "outlook", "words"), SENTENCES, ids=[sentence[0] or "nothing" for sentence in SENTENCES])
def test_sentences_have_an_outlook(reason: str, outlook: JobOutlook, words: str) -> None:
    """Whole sentences, details and unknown reasons of Slurm are understood as far as possible."""
    found = states.judge_reason(reason)
    assert found.outlook is outlook
    assert words in found.description


def job(state: str, **more: Any) -> SlurmJob:
    fields: dict[str, Any] = {
        "id": "17", "name": "dtfperf-x-1", "user": "me", "state": state, "reason": "", "nodes": ("n1", "n2"), "exit_code": 0,
        "signal": 0, "start": None,
    }  # fmt: skip
    return SlurmJob(**(fields | more))


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (job("TIMEOUT", time_limit="00:12:00"),
         "Slurm job 17 reached its time limit of 00:12:00 (TIMEOUT): raise time_limit in clusters.toml"),
        (job("TIMEOUT"), "Slurm job 17 reached its time limit (TIMEOUT): raise time_limit in clusters.toml"),
        (job("NODE_FAIL", failed_node="n2"),
         "Slurm job 17 ended: node n2 failed (NODE_FAIL): try again; exclude_nodes in clusters.toml keeps a node out"),
        (job("NODE_FAIL"), "Slurm job 17 ended: a node of n1, n2 failed (NODE_FAIL): "),
        (job("NODE_FAIL", nodes=("n1",)), "Slurm job 17 ended: node n1 failed (NODE_FAIL): "),
        (job("NODE_FAIL", nodes=tuple(f"n{i}" for i in range(1, 9))), "a node of n1, n2, n3, n4 and 4 more failed"),
        (job("NODE_FAIL", nodes=()), "Slurm job 17 ended: a node failed (NODE_FAIL): "),
        (job("BOOT_FAIL"), "Slurm job 17 ended: a node of n1, n2 did not boot (BOOT_FAIL): try again"),
        (job("PREEMPTED"), "Slurm job 17 was preempted: a job of higher priority took its nodes (PREEMPTED): try again"),
        (job("CANCELLED", cancelled_by="1000"), "Slurm job 17 was cancelled by user 1000 (CANCELLED)"),
        (job("CANCELLED"), "Slurm job 17 was cancelled (CANCELLED)"),
        (job("OUT_OF_MEMORY"), "Slurm job 17 ran out of memory on n1, n2 (OUT_OF_MEMORY): raise memory in clusters.toml"),
        (job("FAILED", exit_code=3, reason="NonZeroExitCode"), "Slurm job 17 failed with exit code 3 (FAILED)"),
        (job("FAILED", signal=9, reason="JobLaunchFailure"), "Slurm job 17 failed with signal 9, JobLaunchFailure (FAILED)"),
        (job("COMPLETED"), "Slurm job 17 ended by itself, as it does when it has heard nothing from pytest for"),
        (job("DEADLINE"), "Slurm job 17 was ended, because it could not end before its deadline (DEADLINE)"),
        (job("REQUEUED"), "Slurm job 17 was put back into the queue (REQUEUED)"),
        (job("COMPLETING"), "Slurm job 17 is ending (COMPLETING)"),
        (job("PONDERING"), "Slurm job 17 is in a state that Slurm calls PONDERING"),
    ],
)  # fmt: skip
def test_ends_are_explained_in_one_sentence(over: SlurmJob, words: str) -> None:
    """The message of a job's end has the job, the reason, the node, and the remedy."""
    explanation = states.explain_end(over)
    assert words in explanation
    assert "\n" not in explanation


@pytest.mark.parametrize("state", STATES)
def test_every_end_has_a_message(state: str) -> None:
    """Every state has a sentence with the job and Slurm's own name of the state."""
    assert re.match(rf"Slurm job 17 [a-z].*\({state}\)", states.explain_end(job(state)))


def test_vanished_job() -> None:
    """The message of an unknown job has its id."""
    assert "Slurm job 17 has vanished" in states.explain_unknown("17")


# Messages of srun 22.05.8 about steps of one task per node, on nodes n1 and n2.
MESSAGES = [
    ("srun: error: n2: task 1: Exited with exit code 3", {1: ["Exited with exit code 3"]}, [], []),
    ("srun: error: n2: task 1: Killed", {1: ["Killed"]}, [], []),
    ("srun: error: n2: task 1: Terminated", {1: ["Terminated"]}, [], []),
    ("srun: error: n1: task 0: Segmentation fault", {0: ["Segmentation fault"]}, [], []),
    ("srun: error: n1: task 0: Out Of Memory", {0: ["Out Of Memory"]}, [], []),
    ("srun: error: n[1-2,4]: tasks 0-1,3: Killed", {0: ["Killed"], 1: ["Killed"], 2: [], 3: ["Killed"]}, [], []),
    ("srun: Force Terminated StepId=8.4", {}, ["srun: Force Terminated StepId=8.4"], []),
    ("srun: error: Node failure on n3", {}, ["srun: error: Node failure on n3"], ["n3"]),
    ("srun: error: Node failure on n[3-4]", {}, ["srun: error: Node failure on n[3-4]"], ["n3", "n4"]),
    (
        "srun: error: Task launch for StepId=10.2 failed on node n2: Communication connection failure",
        {},
        ["srun: error: Task launch for StepId=10.2 failed on node n2: Communication connection failure"],
        ["n2"],
    ),
    ("srun: cluster configuration lacks support for cpu binding", {}, [], []),
    ("", {}, [], []),
]
OF_ALL = [
    "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
    "srun: error: Timed out waiting for job step to complete",
    "srun: error: Application launch failed: Communication connection failure",
    "srun: error: Unable to create step for job 8: Invalid generic resource (gres) specification",
    "srun: error: Unable to create step for job 17: Job/step already completing or completed",
    "srun: error: Unable to confirm allocation for job 7777: Invalid job id specified",
    "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 7777",
    "srun: error: Slurm job 10 has expired",
    "srun: error: Only allocated 2 nodes asked for 3",
    "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-21T18:20:46 DUE TO TIME LIMIT ***",
]


@pytest.mark.parametrize(
    ("line", "of_tasks", "of_all", "failed"),
    [*MESSAGES, *((line, {}, [line], []) for line in OF_ALL)],
    ids=lambda value: str(value),
)
def test_srun_is_understood(line: str, of_tasks: dict[int, list[str]], of_all: list[str], failed: list[str]) -> None:
    """srun's messages about a task are stored for that task, others for the step; failed nodes are listed."""
    messages = SrunMessages()
    messages.feed(line)
    assert {task: messages.get_lines(task) for task in of_tasks} == of_tasks
    assert messages.of_all == of_all
    assert messages.failed_nodes == failed


def test_messages_add_up() -> None:
    """Several lines about one task are kept in order; a task without lines has none."""
    messages = SrunMessages()
    for line in ("srun: error: n2: task 1: Killed", "srun: error: n[1-2]: tasks 0-1: Exited with exit code 1"):
        messages.feed(line)
    assert messages.get_lines(1) == ["Killed", "Exited with exit code 1"]
    assert messages.get_lines(7) == []
