"""Compare sample outputs of pages with the functions that make them. Numbers may differ."""

import ast
import json
import re
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.comparability import list_forbidden_differences
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.datamodel.explanation import CauseKind
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, TrainedProgram
from pytest_dtfperf.explain.experiments import SYNTHETIC, ExperimentSubject, PlannedExperiment, judge_experiment
from pytest_dtfperf.history import events
from pytest_dtfperf.history.comparison import ComparedTraining
from pytest_dtfperf.nightly.summary import Loss
from pytest_dtfperf.spec.command import ROLE_FLAGS
from tests.baselines.examples import entry_of, measurement_of
from tests.docs.pages import REPOSITORY, blocks
from tests.docs.test_snippets import shape

HERE = "tests/docs/test_outputs.py"


def reason() -> str:
    return ask("baseline", ComparisonPolicy(margin=0.05), measurement_of([95.9] * 4), entry=entry_of([100.0] * 4)).reason


def event() -> str:
    then, now = "2026-03-12T02:15:00+00:00", datetime(2026, 3, 20, tzinfo=UTC)
    member = {"low": -0.026, "change": -0.021, "high": -0.016}
    found = {
        "kind": "step",
        "state": "confirmed",
        "first_bad_at": then,
        "members": [member] * 24,
        "differences": ["kernel 6.1.0-18 -> 6.1.0-20"],
    }
    return "\n".join(events.format_summary([found], [found], now))


def experiment() -> str:
    return judge_experiment(
        PlannedExperiment(ExperimentSubject(CauseKind.INPUT, 0.2), SYNTHETIC),
        step_s=0.12,
        instead_of_s=0.31,
        noise_s=0.01,
        baseline=None,
    ).words


def graph() -> str:
    then, now = (
        Fingerprint(program=TrainedProgram(graph=f"{zlib.crc32(repr(each).encode()):012x}", operations=each)) for each in GRAPHS
    )
    return "\n".join(list_forbidden_differences(then, now))


def loss() -> str:
    label = "inception3 b8 gpus=1 num_ps=0 parameter_server"
    found = ComparedTraining(
        label, label, baseline=100.0, current=42.0, change=-0.58, low=-0.629, high=-0.524, foreign=(), noted=()
    )
    return f"- {Loss(found, '20261122T021503Z-9f3c1a')}"


GRAPHS: tuple[dict[str, Any], ...] = ({"Conv2D": 94, "MatMul": 2}, {"Conv2D": 58, "MatMul": 38})

MADE: dict[str, Callable[[], str]] = {
    "docs/numbers.md": reason,
    "docs/history.md": event,
    "docs/explaining.md": experiment,
    "docs/fingerprints.md": graph,
    "docs/nightly.md": loss,
    "docs/command.md": lambda: " ".join(ROLE_FLAGS),
}


@pytest.mark.parametrize("page", MADE)
def test_output_is_what_is_made_now(page: str) -> None:
    """The output on the page is that of the function, apart from numbers."""
    (block,) = (block for block in blocks(page) if block.note("tested by") == HERE)
    assert shape(block.text) == shape(MADE[page]())


def test_notebook_page_has_the_printed_lines() -> None:
    """docs/notebook.md has the lines that the command prints, and a URL with a token."""
    (block,) = (block for block in blocks("docs/notebook.md") if block.note("tested by") == HERE)
    source = (REPOSITORY / "pytest_dtfperf" / "cli" / "notebook.py").read_text()
    *lines, url = block.lines
    for line in lines:
        program, words = re.sub(r"nid\d+|\d{4}-\d\d-\d\d \d\d:\d\d", "{}", line).split(" ", 1)
        assert program == "dtfperf:"
        assert f'print_remark(f"{words}")' in re.sub(r"\{\w+\}", "{}", source)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/lab\?token=[\w-]{32}", url)


def test_producers_order() -> None:
    """docs/inputs.md has exactly the keys of the order that a worker sends to a producer."""
    (block,) = (block for block in blocks("docs/inputs.md") if block.note("tested by") == HERE)
    source = (REPOSITORY / "pytest_dtfperf" / "training" / "inputs" / "python_sources.py").read_text()
    dicts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]
    written = [[key.value for key in node.keys if isinstance(key, ast.Constant)] for node in dicts]
    assert list(json.loads(block.text)) in written
