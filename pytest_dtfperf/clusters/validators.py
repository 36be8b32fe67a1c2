"""What a key of clusters.toml may hold."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Validator:
    """What a key's value must be."""

    what: str
    accepts: Callable[[Any], bool]


def one_of(*words: str) -> Validator:
    return Validator(" or ".join(f'"{word}"' for word in words), lambda value: value in words)


COUNT = Validator("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
SECONDS = Validator("a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf)
FRACTION = Validator("a fraction, as 0.05 for 5 %", lambda value: type(value) in (int, float) and 0 < value < 1)
TEXT = Validator("text", lambda value: isinstance(value, str) and value != "" and "\0" not in value)
TEXTS = Validator(
    "a list of texts", lambda value: isinstance(value, list) and all(each == "" or TEXT.accepts(each) for each in value)
)
NAMES = Validator("a list of at least one text", lambda value: bool(value) and TEXTS.accepts(value))
FLAG = Validator("true or false", lambda value: isinstance(value, bool))
TABLE = Validator("a table", lambda value: isinstance(value, dict))
CODE = Validator('"module:function"', lambda value: isinstance(value, str) and value.count(":") == 1)
S3 = Validator(
    '"s3://bucket" or "s3://bucket/prefix"',
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", value)),
)
