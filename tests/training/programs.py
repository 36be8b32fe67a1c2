"""Programs with TensorFlow that answer questions, a line each: whoever asks imports none."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests import outcomes

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def asked(
    module: str, log: Path, environment: Mapping[str, str], *, within: Sequence[str] = ()
) -> Iterator[tuple[IO[str], IO[str]]]:
    """Where to write questions to a module's program, and where to read its answers. What it says else stands in `log`.

    `within`: the command to run it by. It ends when there are no more questions.
    """
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*within, sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
            cwd=REPOSITORY,
            text=True,
        ) as program,
    ):
        outcomes.serves(program.pid)
        assert program.stdin is not None
        assert program.stdout is not None
        yield program.stdin, program.stdout
        program.stdin.close()
