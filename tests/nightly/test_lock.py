"""The lock of a night on a file system without locks."""

import errno
import os
from pathlib import Path

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.nightly.night import hold_lock
from tests.lockless_disk import without_locks


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS], ids=errno.errorcode.get)
def test_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """On a file system without locks no night begins, with one line that names the lock and the remedy."""
    without_locks(monkeypatch, code)
    with pytest.raises(UsageError) as refused, hold_lock(tmp_path / "nightly.lock"):
        pytest.fail("the night began")
    assert str(refused.value) == (
        f"the night's lock {tmp_path}/nightly.lock cannot be locked: {os.strerror(code)}: --results must be on a file system "
        "with locks, or one night could not tell that another goes on"
    )
