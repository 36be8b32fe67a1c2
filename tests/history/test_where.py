"""Where a history is kept, and that no password is shown."""

from pathlib import Path

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.where import Address, mask_passwords, parse_address

RESULTS = Path("/results")

ADDRESSES = {
    "nothing": (None, "sqlite+pysqlite:////results/history.sqlite", "/results/history.sqlite"),
    "a file": ("/other/mine.db", "sqlite+pysqlite:////other/mine.db", "/other/mine.db"),
    "a file by URL": ("sqlite:////other/mine.db", "sqlite+pysqlite:////other/mine.db", "/other/mine.db"),
    "a server": ("postgresql://perf@db/perf", "postgresql+psycopg://perf@db/perf", "postgresql://perf@db/perf"),
    "a server, its old name": ("postgres://perf@db/perf", "postgresql+psycopg://perf@db/perf", "postgresql://perf@db/perf"),
    "with a password": (
        "postgresql://perf:s3:c@r/et@db/perf",
        "postgresql+psycopg://perf:s3:c@r/et@db/perf",
        "postgresql://perf:***@db/perf",
    ),
}


@pytest.mark.parametrize("given, url, words", ADDRESSES.values(), ids=ADDRESSES)
def test_address_is_parsed(given: str | None, url: str, words: str) -> None:
    """A file, a URL or nothing names one database; its text and its repr have no password."""
    found = parse_address(given, RESULTS)
    assert found is not None
    assert (found.url, str(found), repr(found)) == (url, words, "Address()")


def test_never_is_nowhere() -> None:
    """`never` keeps no history."""
    assert parse_address("never", RESULTS) is None


@pytest.mark.parametrize(
    "given", ["mysql://me:secret@db/perf", "postgresql://me:secret@db", "sqlite://secret", "postgresql://"]
)
def test_other_urls_are_refused(given: str) -> None:
    """What is no history's URL is refused in a line that describes one, and has no password in it."""
    with pytest.raises(UsageError, match=r"postgresql://USER@HOST/NAME|sqlite:///FILE") as refused:
        parse_address(given, RESULTS)
    assert "me:secret" not in str(refused.value)


def test_passwords_are_masked_in_any_text() -> None:
    """Of a command line, a URL's password goes, in its user's part as in its query; all else stays."""
    text = "--history=postgresql://me:pass@db/perf?password=again&sslmode=require&sslpassword=key -k alexnet"
    assert (
        mask_passwords(text) == "--history=postgresql://me:***@db/perf?password=***&sslmode=require&sslpassword=*** -k alexnet"
    )
    assert str(Address("postgresql+psycopg://me@db/perf")) == "postgresql://me@db/perf"
