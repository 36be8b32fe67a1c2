"""How Amazon is called more than once: what has just been made, or is going to be gone, shows only after a while."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

from botocore import exceptions
from botocore.parsers import ResponseParserError

from pytest_dtfperf.clusters.ec2.amazon import refusals
from pytest_dtfperf.clusters.ec2.amazon.account import Account
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.backoff import pause_s

# No answer came, or none that could be read: what was asked for may have been done.
NO_ANSWER = (exceptions.ConnectionError, exceptions.HTTPClientError, ResponseParserError)
T = TypeVar("T")
_SEEN_WITHIN_S = 60.0


def attempts(within_s: float, *, first_s: float = 0.1, most_s: float = 5.0) -> Iterator[None]:
    """Now, then after ever longer pauses, and again when the time is over."""
    deadline = time.monotonic() + within_s
    for asked in count(1):
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, pause_s(asked, first_s, most_s, growth=1.5, spread=0.2)))


def delete_if_there(call: Callable[[], object], *codes: str) -> None:
    """Delete something, which may have been gone before."""
    call_unless(codes, call)


def call_unless(codes: tuple[str, ...], call: Callable[[], T]) -> T | None:
    """What a call gives; None if it is refused with one of these codes."""
    try:
        return call()
    except exceptions.ClientError as error:
        if refusals.code_of(error) not in codes:
            raise
        return None


def call_once_known(call: Callable[[], T], *codes: str) -> T:
    """What a call gives that needs something made a moment ago, of which not all of Amazon may know yet."""
    for _ in attempts(_SEEN_WITHIN_S):
        try:
            return call()
        except exceptions.ClientError as error:
            if refusals.code_of(error) not in codes:
                raise
            last = error
    raise last


@contextmanager
def translate_errors(account: Account, doing: str) -> Iterator[None]:
    """What Amazon refuses within the block is told in our words."""
    try:
        yield
    except (exceptions.ClientError, exceptions.BotoCoreError) as error:
        raise AllocationError(f"{doing}: {account.explain(error)}") from error
