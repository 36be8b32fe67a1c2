"""One session of measuring, without pytest: hosts are lent, specs measured until decided, judged, recorded and accepted.

    from pytest_dtfperf.session import Session

    with Session.open("daint") as session:
        measured = session.measure(session.spec("inception3", gpus=8, num_ps=1))
        print(measured.images_per_sec, session.check(measured).verdict)

docs/session.md says what can be done with it.
"""

from typing import TYPE_CHECKING, Any

from pytest_dtfperf.session.settings import Settings

if TYPE_CHECKING:
    from pytest_dtfperf.session.asked import Measured as Measured
    from pytest_dtfperf.session.session import Session as Session

__all__ = ["Measured", "Session", "Settings"]

_MODULES = {"Session": "session", "Measured": "measured"}


def __getattr__(name: str) -> Any:
    """What is heavy is imported when it is asked for: every pytest on the machine reads its options with `Settings`."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
