"""A host's samples before, during and after one run."""

from typing import Any

import pytest

from pytest_dtfperf.datamodel.host_state import HostState
from pytest_dtfperf.node.host_run import RunMonitor
from pytest_dtfperf.node.host_state import HostCounters, Sample


class Clock(HostCounters):
    """A host on which every sample comes a second later, and finds a second more of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def sample(self) -> Sample:
        self.now_s += 1.0
        now = self.now_s
        return Sample(
            at_s=now, cores={}, own_s=now, controller_s=0.0, load=now, available_bytes=None,
            swapped_in_bytes=None, stalled_s={}, clock_mhz=None, throttled_s=[],
        )  # fmt: skip


def account_of(monitor: RunMonitor, *words: str) -> dict[str, Any] | None:
    """Return the account of a run of these messages: of the controller, or of a task."""
    for word in words:
        task, _, call = word.partition(" ")
        if not call:
            monitor.note_order(word)
        elif call == "counts":
            monitor.note_measuring(task)
        else:
            monitor.note_done(task)
    return monitor.account()


WINDOWS = {
    "one worker": (["go", "worker:0 counts", "worker:0 counts", "worker:0 reports", "leave"], (3, 4)),
    "two workers": (
        ["go", "worker:0 counts", "worker:1 counts", "worker:1 counts", "worker:0 counts", "worker:0 reports", "leave"],
        (3, 5),
    ),
    "two windows": (["go", *["worker:0 counts"] * 4, "leave"], (3, 5)),
    "a worker that counts nothing": (["go", "worker:0 reports", "leave"], (2, 3)),
    "two workers that count nothing": (["go", "worker:0 reports", "worker:1 reports", "leave"], (2, 4)),
    "parameter servers alone": (["go", "leave", "ps:0 counts", "ps:0 reports"], (2, 3)),
    "a parameter server beside a worker": (
        ["go", "worker:0 counts", "worker:0 counts", "worker:0 reports", "leave", "ps:0 counts", "ps:0 reports"],
        (3, 4),
    ),
}


@pytest.mark.parametrize("words, window", WINDOWS.values(), ids=WINDOWS)
def test_window(words: list[str], window: tuple[int, int]) -> None:
    """Training is from the first start that a task calls to the last end; else from the controller's word to the report."""
    start, end = window
    found = account_of(RunMonitor(Clock()), *words)
    assert found
    assert found["window_s"] == end - start
    assert found["load"] == {"before": 1.0, "after": end}


@pytest.mark.parametrize("words", [[], ["go"], ["go", "worker:0 counts"]], ids=["nothing", "started", "measuring"])
def test_failed_run_has_no_account(words: list[str]) -> None:
    """A run without an end of its training has no account."""
    assert account_of(RunMonitor(Clock()), *words) is None


def make_reading(index: str, **changes: Any) -> dict[str, Any]:
    whole = {
        "index": index, "uuid": f"GPU-{index}", "sm_mhz": 1300, "sm_max_mhz": 1328, "memory_mhz": 715, "memory_max_mhz": 715,
        "reasons": [], "ecc_uncorrected": 0, "temperature_c": 50, "power_w": 200.0, "utilisation": 99, "processes": [],
    }  # fmt: skip
    return {**whole, **changes}


STRANGER = {"pid": 4321, "name": "python3", "memory_mib": 800}


def test_gpus_within_the_window() -> None:
    """Reasons and spans are those of the samples within the window; before and after stand apart."""
    monitor = RunMonitor(
        Clock(), gpus=["1"], last=(0.5, [make_reading("0"), make_reading("1", processes=[STRANGER], utilisation=40)])
    )
    monitor.add_samples([(1.5, [make_reading("1", reasons=["hw_slowdown"], sm_mhz=100)])])
    monitor.add_samples(
        [(3.2, [make_reading("1", reasons=["sw_power_cap"], sm_mhz=1000)]), (3.8, [make_reading("1", reasons=None)])]
    )
    monitor.add_samples([(9.0, [make_reading("1", ecc_uncorrected=2, temperature_c=None, reasons=["gpu_idle"])])])
    found = account_of(monitor, "go", "worker:0 counts", "worker:0 counts")
    assert found
    (gpu,) = found["gpus"]
    assert gpu["during"] == {
        "samples": 1, "reasons": {"sw_power_cap": 1}, "sm_mhz": [1000, 1300], "memory_mhz": [715, 715],
        "temperature_c": [50, 50], "power_w": [200.0, 200.0],
    }  # fmt: skip
    assert (gpu["before"]["utilisation"], gpu["others"]) == (40, [STRANGER])
    assert gpu["after"]["ecc_uncorrected"] == 2
    assert HostState.from_json(found).to_json() == found, "the data model has the same keys"


@pytest.mark.parametrize(
    "seen_s, others, utilisation",
    [(9.0, [], None), (11.0, [STRANGER], None), (13.0, [STRANGER], 40)],
    ids=["during the last run", "just after it", "long after it"],
)
def test_last_run_is_not_taken_for_a_stranger(seen_s: float, others: list[Any], utilisation: int | None) -> None:
    """Processes seen before our last run ended may be its own, and the GPU's reported use soon after is about it."""
    monitor = RunMonitor(
        Clock(), gpus=["0"], last=(seen_s, [make_reading("0", processes=[STRANGER], utilisation=40)]), free_since_s=10.0
    )
    found = account_of(monitor, "go", "leave")
    assert found
    assert found["gpus"][0]["others"] == others
    assert found["gpus"][0]["before"]["utilisation"] == utilisation


def test_unreadable_gpus_have_empty_fields() -> None:
    """A GPU without readings is named, with empty fields."""
    found = account_of(RunMonitor(Clock(), gpus=["0"]), "go", "leave")
    assert found
    assert found["gpus"] == [
        {
            "index": "0", "before": None, "after": None, "others": [],
            "during": {"samples": 0, "reasons": {}, "sm_mhz": None, "memory_mhz": None, "temperature_c": None, "power_w": None},
        }
    ]  # fmt: skip
