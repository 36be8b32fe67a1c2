"""What those say that bring data to hosts: staging/on_host/fetch.py."""

from pytest_dtfperf.messages.fields import COUNT, FOLDER, FROM, REASON
from pytest_dtfperf.messages.kinds import Table, flag, record

FETCH: Table = {
    "hello": record(FROM),
    "progress": record({**FROM, "bytes": COUNT, "moved": COUNT, "waiting": flag}),
    "staged": record({**FROM, "folder": FOLDER, "fetched": COUNT, "bytes": COUNT}),
    "failed": record({**FROM, "words": REASON}),
}
