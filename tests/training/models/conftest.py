"""Asks a process with TensorFlow about networks: this one imports none."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask `program` a question by its kind."""
    log = tmp_path_factory.mktemp("networks") / "log"
    # oneDNN chooses algorithms by the CPU and the data format, whose rounding batch norm over a few pixels makes large.
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.models.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=Path(__file__).parents[3],
            text=True,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        questions, answers = program.stdin, program.stdout

        def of(kind: str, **arguments: Any) -> dict[str, Any]:
            questions.write(json.dumps([kind, arguments]) + "\n")
            questions.flush()
            line = answers.readline()
            assert line, f"the program ended: {log.read_text()[-2000:]}"
            answer: dict[str, Any] = json.loads(line)
            assert "failed" not in answer, answer["failed"]
            return answer

        yield of
        questions.close()
