"""Requests about networks to a process with TensorFlow: this one imports none."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.training.programs import run_with_requests

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask `program` a question by its kind."""
    log = tmp_path_factory.mktemp("networks") / "log"
    with run_with_requests("tests.training.models.program", log) as (questions, answers):

        def ask_program(kind: str, **arguments: Any) -> dict[str, Any]:
            questions.write(json.dumps([kind, arguments]) + "\n")
            questions.flush()
            line = answers.readline()
            assert line, f"the program ended: {log.read_text()[-2000:]}"
            answer: dict[str, Any] = json.loads(line)
            assert "failed" not in answer, answer["failed"]
            return answer

        yield ask_program
