"""Signals that are held back while threads are waited for."""

import signal

import pytest

from pytest_dtfperf.session.signals import hold_signals, raise_exit


def interrupt(passed: list[str], times: int) -> None:
    """Interrupt a block that holds signals back, and its clean-up, and note what is passed."""
    with hold_signals() as deliver:
        deliver()
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        passed.append("block")
        try:
            deliver()
            passed.append("not delivered")
        finally:
            signal.raise_signal(signal.SIGINT)
            passed.append("clean-up")


@pytest.mark.parametrize("times", [1, 2])
def test_signal_is_held_back_until_it_is_delivered(times: int) -> None:
    """Ctrl-C within the block interrupts only where signals are delivered; a second one, as of `timeout`, changes nothing."""
    passed: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt(passed, times)
    assert passed == ["block", "clean-up"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def terminate(passed: list[str]) -> None:
    """End a block that holds signals back with one that was not delivered, and note what is passed."""
    with raise_exit():
        with hold_signals():
            signal.raise_signal(signal.SIGTERM)
            passed.append("block")
        passed.append("not delivered")


def test_signal_that_was_not_delivered_comes_at_the_end_of_the_block() -> None:
    """SIGTERM after the last delivery ends the program when the block has ended, with its usual exit code."""
    passed: list[str] = []
    with pytest.raises(SystemExit) as ended:
        terminate(passed)
    assert ended.value.code == 128 + signal.SIGTERM
    assert passed == ["block"]


def test_handler_that_returns_gets_each_signal_once() -> None:
    """A program's own handler is called once for each signal, although signals are delivered again and again."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with hold_signals() as deliver:
            for _ in range(3):
                signal.raise_signal(signal.SIGTERM)
                deliver()
                deliver()
            signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM] * 4
    finally:
        signal.signal(signal.SIGTERM, before)
