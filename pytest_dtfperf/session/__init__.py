"""Measure specs until their verdicts are decided, and judge, record and accept them, with or without pytest.

    from pytest_dtfperf.session import Session

    with Session.open("daint") as session:
        measured = session.measure(session.spec("inception3", gpus=8, num_ps=1))
        print(measured.images_per_sec, session.check(measured).verdict)

See docs/session.md.
"""

from typing import TYPE_CHECKING, Any

from pytest_dtfperf.session.settings import Settings

if TYPE_CHECKING:
    from pytest_dtfperf.session.session import Session as Session

__all__ = ["Session", "Settings"]


def __getattr__(name: str) -> Any:
    """Import `Session`, which is heavy, when it is first used: every pytest on the machine imports `Settings`."""
    if name != "Session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_dtfperf.session.session import Session

    return Session
