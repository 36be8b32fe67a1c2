"""Reading from commands that may never stop writing, or never write."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_dtfperf.clusters.children import TooMuchOutput, read_output

MOST_BYTES = 1 << 20


@contextmanager
def python(script: str) -> "Iterator[subprocess.Popen[bytes]]":
    argv = [sys.executable, "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_both_pipes_are_read_to_their_end() -> None:
    """More than a pipe holds comes through each of them, whichever is written first."""
    script = "import sys; sys.stderr.write('e' * 300_000); sys.stdout.write('o' * 300_000); sys.stderr.write('!')"
    with python(script) as process:
        assert read_output(process, MOST_BYTES, lambda: False) == (b"o" * 300_000, b"e" * 300_000 + b"!")


@pytest.mark.parametrize("pipe", ["stdout", "stderr"])
def test_endless_output_is_cut_off(pipe: str) -> None:
    """Endless output is not read to its end, and memory stays bounded."""
    with python(f"import sys\nwhile True: sys.{pipe}.write('y' * 65536)") as process, pytest.raises(TooMuchOutput):
        read_output(process, MOST_BYTES, lambda: False)


def test_silent_command_is_abandoned() -> None:
    """A silent command, and one with endless output, are abandoned as soon as their result is not needed."""
    for script in ("import time; time.sleep(60)", "import time\nwhile True: print('.', flush=True); time.sleep(0.01)"):
        over = time.monotonic() + 0.2
        with python(script) as process:
            assert read_output(process, MOST_BYTES, lambda over=over: time.monotonic() > over) is None  # type: ignore[misc]
