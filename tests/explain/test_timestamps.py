"""Tests of packed step timestamps, and of the refusal of invalid ones."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.traces import InvalidTimestamps, StepTimestamps, pack_timestamps, unpack_timestamps
from tests.explain.timestamped import make_lockstep_timestamps

GIVEN: dict[str, Any] = {
    "worker": "worker:0", "python_us": [1], "variables_us": [None], "gradients_us": [3], "end_us": [4], "cpu_us": [0]
}  # fmt: skip


def test_timestamps_survive_packing() -> None:
    """Timestamps of several workers, with unknown values, that were packed and unpacked are the same."""
    given = [*make_lockstep_timestamps(np.full((2, 5), 0.1)), StepTimestamps(**GIVEN)]
    assert unpack_timestamps(pack_timestamps(given)) == given


def test_largest_report_is_packed() -> None:
    """400,000 steps of varying times can be packed and unpacked."""
    random = np.random.default_rng(1)
    (timestamps,) = make_lockstep_timestamps(0.01 * (1 + 0.05 * random.standard_normal((1, 400_000))))
    assert len(unpack_timestamps(pack_timestamps([timestamps]))[0]) == 400_000


@pytest.mark.parametrize(
    "change, why",
    [
        ({"worker": 7}, "have a worker's name that is no text"),
        ({"cpu_us": [1, 2]}, "have columns of different lengths"),
        ({"cpu_us": [1.5]}, "have cpu_us that are no whole microseconds"),
        ({"cpu_us": [True]}, "have cpu_us that are no whole microseconds"),
        ({"end_us": [-1]}, "have end_us that are no whole microseconds"),
        ({"end_us": [10**18]}, "have end_us that are no whole microseconds"),
        ({"end_us": [2]}, "go back in time"),
        ({"python_us": "x"}, "have python_us that are no list of at most 400000"),
        ({"more": 1}, "have keys other than worker, python_us, variables_us, gradients_us, end_us, cpu_us"),
    ],
    ids=str,
)
def test_invalid_timestamps_are_refused(change: dict[str, Any], why: str) -> None:
    """Invalid timestamps are refused with the reason."""
    packed = base64.b64encode(zlib.compress(json.dumps([GIVEN | change]).encode())).decode()
    with pytest.raises(InvalidTimestamps) as refused:
        unpack_timestamps(packed)
    assert str(refused.value) == why


@pytest.mark.parametrize("text", ["x", "AAAA", base64.b64encode(zlib.compress(b"{}")).decode()])
def test_text_that_is_no_packed_list_is_refused(text: str) -> None:
    """A text that is not base64, not compressed or no list is refused."""
    with pytest.raises(InvalidTimestamps):
        unpack_timestamps(text)


def test_text_that_expands_too_much_is_refused() -> None:
    """A small text that would expand to 40 MiB of blanks is refused."""
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * (40 << 20), 9)).decode()
    with pytest.raises(InvalidTimestamps):
        unpack_timestamps(bomb)
