"""What the supervisor of an SSH host says: node/boot.py, node/supervisor.py, and the shell of clusters/ssh/bootstrap.py."""

from pytest_dtfperf.messages.fields import PID, REASON, address
from pytest_dtfperf.messages.kinds import (
    Message,
    MessageError,
    Misfit,
    Table,
    fit,
    flag,
    listed,
    mapping,
    matching,
    optional,
    record,
    text,
    whole,
)

_SURVEY = {
    "hostname": matching(r"[0-9A-Za-z._-]{1,255}", "the name of a host"),
    "addresses": listed(address, 4096),
    "reached_at": matching(r"[0-9A-Fa-f:.%\w-]{0,255}", "an address"),
    "left": mapping(text(), listed(text(), 1 << 16), 4096),
}
_SUPERVISOR_AT: Table = {
    "python": record({}),
    "setup": record({"line": whole(1)}),
    "bundle": record({}),
    "environment": record({"doing": text()}),
    "ready": lambda value: record(_SURVEY if value else {})(value),
    "started": record({}),
    "swept": record({"survivors": listed(PID, 1 << 16)}),
}
_SUPERVISOR_FAILED: Table = {
    "setup": record({"line": whole(1), "code": whole(0, 255)}),
    "python": record({}),
    "version": record({"version": text(60)}),
    "bundle": record({"why": REASON}),
    "environment": record({"why": REASON, "hint": REASON}),
    "program": record({"program": text(4096)}),
}
_SUPERVISOR_ENDED = record({"ended": optional(whole(-255, 255)), "late": flag, "survivors": listed(PID, 1 << 16)})


def of_supervisor(words: Message) -> Message:
    """What a supervisor is at, what has failed, or how what it watched over has ended. Raises `MessageError`."""
    for name, table in (("at", _SUPERVISOR_AT), ("failed", _SUPERVISOR_FAILED)):
        if name in words:
            return fit(table, words, name)
    try:
        ended: Message = _SUPERVISOR_ENDED(words)
    except Misfit as misfit:
        raise MessageError(f"sent words that nobody knows: {misfit.path} {misfit.must}") from None
    return ended
