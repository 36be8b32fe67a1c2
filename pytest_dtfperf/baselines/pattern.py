"""Which baselines somebody means: words like `model=resnet* gpus=8`, all of which must hold. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Self

from pytest_dtfperf.errors import UsageError, unknown_name
from pytest_dtfperf.spec import KEY_FIELDS, UNUSUAL_KEY_FIELDS, Spec
from pytest_dtfperf.spec.spec import word_of

FIELDS = (*KEY_FIELDS, *UNUSUAL_KEY_FIELDS)
USUAL = {field.name: word_of(field.default) for field in fields(Spec) if field.name in UNUSUAL_KEY_FIELDS}


@dataclass(frozen=True)
class Pattern:
    """What must hold of a key: fields of a spec and their values, with *, ? and [...] as shells have them."""

    wanted: Mapping[str, str]

    @classmethod
    def of(cls, words: Iterable[str]) -> Self:
        """Raises `UsageError` for what is no such word, or says nothing."""
        wanted: dict[str, str] = {}
        for word in (part for text in words for part in text.split()):
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise UsageError(f"{word!r} does not say which baselines: write FIELD=VALUE, as model=resnet50 or gpus=8")
            if name not in FIELDS:
                raise UsageError(unknown_name("field of a spec", name, FIELDS))
            if name in wanted:
                raise UsageError(f"{name} is said twice, {wanted[name]} and {value}: all words must hold. Use *, ? or [...]")
            wanted[name] = value
        if not wanted:
            raise UsageError("say which baselines, as model=resnet50 or gpus=8; model=* is all of them")
        return cls(wanted)

    def matches(self, key: str) -> bool:
        """What does not stand in a key is as usual."""
        fields = dict(word.split("=", 1) for word in key.split(" "))
        return all(fnmatchcase({**USUAL, **fields}[name], value) for name, value in self.wanted.items())
