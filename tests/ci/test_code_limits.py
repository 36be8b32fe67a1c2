"""ci/code_limits.py on invented code: what it counts, and that a count above its limit fails."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "ci" / "code_limits.py"


@pytest.fixture(scope="module")
def limits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_limits", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["code_limits"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


MODULES = {
    "a.py": "class Job: ...\nclass _Own: ...\ndef told(): ...\ndef find_jobs(): ...\n",
    "b.py": "class Job: ...\nclass _Own: ...\nclass Row:\n    @property\n    def asked(self): ...\n    def packed(self): ...\n",
}


def test_code_limits_counts_duplicates_and_participles(limits: ModuleType) -> None:
    """Public classes of several modules and functions named by a participle count; properties and the field's names do not."""
    code = limits.Code(MODULES, {})
    assert code.find_duplicate_classes() == {"Job": ["a.py", "b.py"]}
    assert code.find_participles() == ["a.py: told"]


@pytest.mark.parametrize(
    "text, found",
    [("It said so.", 1), ("said=said_of(1), said(2)", 0), ("Said, and said", 2), ("unsaid, said_of, x.said, --said", 0)],
)
def test_code_limits_counts_words_of_prose_alone(text: str, found: int, limits: ModuleType) -> None:
    """A word counts in prose in any case, and not as a part of an identifier, attribute or option."""
    assert limits._measure_frequencies({"a.md": text})["said"] == 1e4 * found


def test_code_limits_finds_modules_that_are_too_long(limits: ModuleType) -> None:
    """A module of one line more than the limit is found."""
    texts: Mapping[str, str] = {"a.py": "x = 1\n" * limits.LONGEST_MODULE, "b.py": "x = 1\n" * (limits.LONGEST_MODULE + 1)}
    assert limits.Code(texts, {}).find_long_modules() == ["b.py"]


def test_code_limits_fails_above_a_limit(
    limits: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A count above its limit is marked, and the exit code is 1; at the limit it is 0."""
    monkeypatch.setattr(limits, "read_code", lambda: limits.Code({"a.py": "def find(): ...  # said\n"}, {"b.md": "x\n"}))
    monkeypatch.setattr(limits, "WORDS", {"said": (1e4, 0.0)})
    assert limits.main([]) == 0
    monkeypatch.setattr(limits, "WORDS", {"said": (9999.0, 0.0)})
    assert limits.main([]) == 1
    assert "'said' per 10,000 lines of code" in capsys.readouterr().out.split("ABOVE ITS LIMIT")[0].splitlines()[-1]
