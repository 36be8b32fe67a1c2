"""An enumeration with a row of properties for each name. It is small, because every pytest with the plugin imports it."""

from enum import StrEnum
from typing import Any, Self


class RowEnum(StrEnum):
    """Members are declared as `NAME = ("name", Row(...))`. A subclass declares the type of its `row`."""

    row: Any

    # `row` is never omitted; mypy takes a look-up by value, such as Verdict("PASSED"), for a call of this.
    def __new__(cls, name: str, row: object = None) -> Self:
        assert row is not None
        member = str.__new__(cls, name)
        member._value_ = name
        member.row = row
        return member
