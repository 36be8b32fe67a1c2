"""The selection of baselines by a pattern."""

import pytest

from pytest_dtfperf.baselines.store import BaselinePattern
from pytest_dtfperf.errors import UsageError
from tests.baselines.examples import spec_of

KEY = spec_of(model="resnet50", gpus=8, forward_only=True).key
MATCHES: dict[str, tuple[list[str], bool]] = {
    "one field": (["model=resnet50"], True),
    "another value": (["model=resnet101"], False),
    "two fields": (["model=resnet50", "gpus=8"], True),
    "two of which one does not hold": (["model=resnet50", "gpus=4"], False),
    "in one word": (["model=resnet50 gpus=8"], True),
    "a pattern": (["model=resnet*"], True),
    "one of several": (["gpus=[48]"], True),
    "no part of a value": (["gpus=?8"], False),
    "everything": (["model=*"], True),
    "what is unusual": (["forward_only=true"], True),
    "what is usual and not in the key": (["xla_compile=false", "optimizer=sgd"], True),
    "what would be usual": (["forward_only=false"], False),
}


@pytest.mark.parametrize("words, matches", MATCHES.values(), ids=MATCHES)
def test_pattern_matches_all_of_its_fields(words: list[str], matches: bool) -> None:
    """A key matches if each FIELD=PATTERN matches; a field that a key leaves out has its default value."""
    assert BaselinePattern.parse(words).matches(KEY) is matches


WRONG = {
    "resnet50": "'resnet50' is no FIELD=VALUE: write FIELD=VALUE",
    "gpus=": "'gpus=' is no FIELD=VALUE",
    "modl=x": "unknown field of a spec 'modl'. Did you mean 'model'?",
    "gpus=1 gpus=2": "gpus is given twice, 1 and 2: both must match",
    " ": "give a pattern of baselines, as model=resnet50 or gpus=8; model=\\* is all of them",
}


@pytest.mark.parametrize("word, words", WRONG.items(), ids=["no field", "no value", "unknown", "twice", "nothing"])
def test_invalid_pattern_is_refused(word: str, words: str) -> None:
    """A pattern without a known field or with a repeated field is refused with the right form."""
    with pytest.raises(UsageError, match=words):
        BaselinePattern.parse([word])
