"""Dataclasses as JSON has them, and back, by their fields' names and types.

Goes to the hosts, so it needs nothing but Python there.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]


class Plain:
    """Gives a dataclass `to_json` and `from_json`; where one has its own, those that hold it use that."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {field.name: _written(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave, of an older version, too: what is not there is as usual. Raises `TypeError` for other names."""
        readers = _readers(cls)  # type: ignore[arg-type]  # mypy asks instances of it for __hash__
        return cls(**{**data, **{name: readers[name](data[name]) for name in readers.keys() & data.keys()}})


def _written(value: Any) -> Any:
    if isinstance(value, Plain):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _written(each) for key, each in value.items()}
    return [_written(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def _readers(kind: Hashable) -> Mapping[str, Reader]:
    """How to read those fields that are not as JSON has them."""
    return {name: reader for name, hint in get_type_hints(kind).items() if (reader := _reader(hint))}


def _reader(hint: Any) -> Reader | None:
    if isinstance(hint, type) and issubclass(hint, Plain):
        return _if_it_is(dict, hint.from_json)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _if_it_is(str, hint)
    origin, inner = get_origin(hint), next(filter(None, map(_reader, get_args(hint))), None)
    if origin is tuple:
        return _if_it_is(list, lambda value: tuple(map(inner, value) if inner else value))
    if inner is None or origin in (Union, UnionType):
        return inner
    if origin is Sequence:
        return _if_it_is(list, lambda value: [inner(each) for each in value])
    return _if_it_is(dict, lambda value: {key: inner(each) for key, each in value.items()})


def _if_it_is(kind: type, reader: Reader) -> Reader:
    """What is of another kind, such as nothing, stays as it is."""
    return lambda value: reader(value) if isinstance(value, kind) else value
