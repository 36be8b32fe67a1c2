"""Timestamps as they travel, and what is refused of them."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.traces import InvalidTimestamps, StepTimestamps, pack_timestamps, unpack_timestamps
from tests.explain.timestamped import in_lockstep

GIVEN: dict[str, Any] = {
    "worker": "worker:0", "python_us": [1], "variables_us": [None], "gradients_us": [3], "end_us": [4], "cpu_us": [0]
}  # fmt: skip


def test_stamps_come_back_as_they_were_sent() -> None:
    """Packed and unpacked, timestamps of several workers are the same, what is not known among them."""
    given = [*in_lockstep(np.full((2, 5), 0.1)), StepTimestamps(**GIVEN)]
    assert unpack_timestamps(pack_timestamps(given)) == given


def test_as_many_steps_as_a_report_can_have_are_sent() -> None:
    """400,000 steps of numbers that do not repeat fit into a message."""
    random = np.random.default_rng(1)
    (timestamps,) = in_lockstep(0.01 * (1 + 0.05 * random.standard_normal((1, 400_000))))
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
def test_what_cannot_be_is_refused(change: dict[str, Any], why: str) -> None:
    """A host may send anything: each thing that timestamps cannot be is said."""
    packed = base64.b64encode(zlib.compress(json.dumps([GIVEN | change]).encode())).decode()
    with pytest.raises(InvalidTimestamps) as refused:
        unpack_timestamps(packed)
    assert str(refused.value) == why


@pytest.mark.parametrize("text", ["x", "AAAA", base64.b64encode(zlib.compress(b"{}")).decode()])
def test_what_is_nothing_of_ours_is_refused(text: str) -> None:
    """Neither base64 nor a compressed list: refused."""
    with pytest.raises(InvalidTimestamps):
        unpack_timestamps(text)


def test_small_text_becomes_no_more_than_stamps_may_be() -> None:
    """A gigabyte of blanks that is a small text is not made."""
    bomb = base64.b64encode(zlib.compress(b"[" + b" " * (200 << 20), 9)).decode()
    with pytest.raises(InvalidTimestamps):
        unpack_timestamps(bomb)
