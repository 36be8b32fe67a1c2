"""How near measurements are to what their resources allow, in words. Values in, text out."""

from collections.abc import Iterable

from pytest_dtfperf.formats import NONE
from pytest_dtfperf.limits.limit import Limit
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import labels

ABOUT_LIMITS = "limit: what cores or GPUs, links and memory each allow alone; a step that needs several in turn is below it"


def format_limit_share(record: Record) -> str:
    """`91 % link`: for a table."""
    return f"{format_share_of_limit(record)} {find_binding_resource(record)}" if record.share_of_limit else NONE


def format_share_of_limit(record: Record) -> str:
    """`91 %`: where there is no room for more."""
    share = record.share_of_limit
    return NONE if share is None else f"{100 * share:.0f} %"


def find_binding_resource(record: Record) -> str | None:
    """The resource that allows no more: cores, gpus, link or memory."""
    found = Limit.from_json(record.limit).binding if record.limit else None
    return found.resource if found else None


def format_limit(record: Record) -> str:
    """As `Limit.words` has it; empty where it is not known."""
    return Limit.from_json(record.limit).words(record.images_per_sec) if record.limit else ""


def format_limit_or_reason(record: Record) -> str:
    """The same, or why it is not known; empty where nobody has looked for it."""
    if not record.limit or record.share_of_limit:
        return format_limit(record)
    return f"not known: {next(iter(record.limit['unknown'].values()), 'nothing binds it that was looked for')}"


def list_limits(records: Iterable[Record]) -> list[str]:
    """Of each model the fastest that has one, and what it is. Nothing where none has; the table has those of all."""
    limited = [record for record in records if record.is_valid and record.share_of_limit]
    fastest = {record.spec.model: record for record in sorted(limited, key=lambda record: record.images_per_sec)}
    label = labels(record.spec for record in fastest.values())
    found = [f"{label[record.spec]}: {format_limit(record)}" for _, record in sorted(fastest.items())]
    return [*found, ABOUT_LIMITS] if found else []
