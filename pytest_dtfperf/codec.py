"""The codec of the data model: writes, reads, validates and describes dataclasses as JSON, from their fields and type hints.

    @dataclass(frozen=True, kw_only=True)
    class Score(JsonData):
        images: int = field(metadata=describe("Images of the test set", at_least=1))
        loss: float = field(metadata=describe("Mean cross-entropy"))

A field is declared once. `to_json` writes it, `from_json` reads and checks it, `baselines/json_schema.py` describes it. A
number must be finite and within the field's range; in a list or an object this holds for each. Unknown keys are refused.
A property below `@json_field(describe(...))` is written and described likewise, and not read.

It is sent to the hosts, so it needs only Python.
"""

import math
import re
import reprlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import cache, cached_property, partial
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

Reader = Callable[[Any], Any]  # converts JSON data to a value
Check = Callable[[Any], None]  # raises `ValidationError`
Getter = TypeVar("Getter", bound=Callable[[Any], Any])

_PLAIN = frozenset((int, float, bool, str, NoneType))  # types that JSON has as they are
_NUMBERS: Mapping[Any, frozenset[type]] = {int: frozenset((int,)), float: frozenset((int, float))}  # hint -> allowed types
_SIGNS = {"at_least": ">=", "above": ">", "at_most": "<=", "below": "<"}
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}
_NAMES = {"integer": "a whole number", "number": "a finite number", "boolean": "true or false", "string": "text"}


def format_short(value: object) -> str:
    """Return the representation of a value, with long ones shortened."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


class ValidationError(TypeError, ValueError):
    """A value is not allowed in its field; the message has the path to it."""

    def __init__(self, allowed: str, value: Any, path: str = "") -> None:
        super().__init__(allowed, value, path)
        self.allowed, self.path, self._value = allowed, path, value

    @property
    def shown(self) -> str:
        """The value as a message quotes it. Most errors are never shown: one of several allowed types did not fit."""
        return format_short(self._value)

    def __str__(self) -> str:
        return f"{self.path}{': ' if self.path else ''}must be {self.allowed}, not {self.shown}"

    def prepend(self, step: object) -> "ValidationError":
        """Return the same error one level up: `step` is the key or the index that leads to it."""
        return ValidationError(self.allowed, self._value, f"{str(step)[:40]}{'.' if self.path else ''}{self.path}")


def describe(
    description: str = "",
    *,
    unit: str = "",
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    pattern: str | None = None,
    form: str = "",
    key_pattern: str | None = None,
    min_size: int = 0,
    max_size: int | None = None,
    inner_sizes: Sequence[int] = (),
    is_finite: bool = True,
    omit_empty: bool = False,
    is_stored: bool = True,
    of_each_task: bool = False,
    is_inline: bool = False,
) -> Mapping[str, Any]:
    """Return the metadata of a dataclass field that is stored or travels as JSON.

    Args:
        description: For the schema and the reference.
        unit: Of its numbers, as in "s" or "bytes".
        at_least, above, at_most, below: Range of each number in it.
        pattern: Regular expression that all of each text in it matches.
        form: Phrase for texts of the pattern, for errors.
        key_pattern: Regular expression that all of each key of an object matches.
        min_size: Least number of items of a list, or of characters of a text.
        max_size: Largest number of items of a list, of keys of an object, or of characters of a text; None: no limit.
        inner_sizes: Largest sizes of what is in it: of its items, of what is in these, and so on.
        is_finite: Whether NaN and infinities are refused.
        omit_empty: Whether it is left out of JSON while it is empty, None or its default.
        is_stored: Whether it is written.
        of_each_task: Whether a run has it as a mapping, task to the field of the same name in the task's report.
        is_inline: Whether its keys are written among those of the object that has it.
    """
    limits = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    return {
        "description": description,
        "unit": unit,
        "range": {name: value for name, value in limits.items() if value is not None},
        "pattern": pattern,
        "form": form,
        "key_pattern": key_pattern,
        "min_size": min_size,
        "max_size": max_size,
        "inner_sizes": inner_sizes,
        "is_finite": is_finite,
        "omit_empty": omit_empty,
        "is_stored": is_stored,
        "of_each_task": of_each_task,
        "is_inline": is_inline,
    }


def json_field(metadata: Mapping[str, Any]) -> Callable[[Getter], Getter]:
    """Return a decorator for the getter of a property, which makes `to_json` write the property."""

    def mark(getter: Getter) -> Getter:
        getter.metadata = metadata  # type: ignore[attr-defined]  # a function has any attribute
        return getter

    return mark


class JsonData:
    """Adds `to_json` and `from_json` to a dataclass; a class's own versions are used by classes that contain it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return its fields as JSON data, in their order."""
        data: dict[str, Any] = {}
        keys = list_keys(type(self))  # type: ignore[arg-type]  # mypy asks instances of it for __hash__
        for key in keys:
            value = getattr(self, key.name)
            if key.is_inline:
                data |= value.to_json()
            elif not key.omits_empty or not _is_empty(value, key):
                data[key.name] = _write(value)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the object that `to_json` wrote; a missing key has its field's default.

        Raises:
            ValidationError: A key is unknown or missing, or a value has another type or is out of its range.
        """
        _check_of(cls)(data)  # type: ignore[arg-type]  # likewise
        made: Self = _make(cls, data)
        return made


@dataclass(frozen=True)
class Key:
    """A field or a property that is written."""

    name: str
    hint: Any
    metadata: Mapping[str, Any]
    default: Any
    is_computed: bool = False

    @cached_property
    def is_inline(self) -> bool:
        return bool(self.metadata.get("is_inline"))

    @cached_property
    def omits_empty(self) -> bool:
        return bool(self.metadata.get("omit_empty"))


@cache
def list_keys(cls: Any) -> Sequence[Key]:
    """Return what is written of a dataclass: its stored fields, then its `written` properties."""
    hints = get_type_hints(cls)
    stored = [
        Key(field.name, hints[field.name], field.metadata, field.default)
        for field in fields(cls)
        if field.metadata.get("is_stored", True)
    ]
    members = [each for base in reversed(cls.__mro__) for each in vars(base).items()]
    getters = {name: member.fget for name, member in members if isinstance(member, property)}
    computed = [
        Key(name, get_type_hints(getter)["return"], metadata, MISSING, is_computed=True)
        for name, getter in getters.items()
        if (metadata := getattr(getter, "metadata", None))
    ]
    return [*stored, *computed]


@cache
def _read_names(cls: Any) -> frozenset[str]:
    """Return the keys of a dataclass in JSON, including those of its inline fields and its computed ones."""
    inline = {name for key in list_keys(cls) if key.is_inline for name in _read_names(key.hint)}
    own = {key.name for key in list_keys(cls) if not key.is_inline}
    return frozenset(inline | own | {field.name for field in fields(cls) if not field.metadata.get("is_inline")})


def _make(cls: Any, data: Mapping[str, Any]) -> Any:
    """Return the object of checked data."""
    readers, values = _readers(cls), dict(data)
    made = {}
    for key in list_keys(cls):
        if key.is_inline:
            made[key.name] = _make(key.hint, {name: values.pop(name) for name in _read_names(key.hint) & values.keys()})
        elif key.is_computed:
            values.pop(key.name, None)
    made |= {name: readers[name](values[name]) for name in readers.keys() & values.keys()}
    values |= made
    return cls(**values)


def _is_empty(value: Any, key: Key) -> bool:
    is_known = key.default is not MISSING and isinstance(value, int | float | str)  # such as zero, where None is the default
    return bool(value == key.default) or not (value or is_known)


def _has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _write(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, JsonData):
        return value.to_json()
    if isinstance(value, Mapping):
        is_plain = _PLAIN.issuperset(map(type, value.values()))
        return dict(value) if is_plain else {key: _write(each) for key, each in value.items()}
    if isinstance(value, list | tuple):  # most are times of steps, and not written one by one
        return list(value) if _PLAIN.issuperset(map(type, value)) else [_write(each) for each in value]
    return value


@cache
def _readers(cls: Hashable) -> Mapping[str, Reader]:
    """Return the readers of fields with values that differ from JSON's."""
    return {name: reader for name, hint in get_type_hints(cls).items() if (reader := _reader(hint))}


def _reader(hint: Any) -> Reader | None:
    if isinstance(hint, type) and issubclass(hint, JsonData):  # the check of the object that contains it has checked it, too
        return _if_it_is(dict, hint.from_json if _reads_itself(hint) else partial(_make, hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _if_it_is(str, hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Mapping, dict):
        return _mapping_reader(*map(_reader, args))
    inner = next(filter(None, map(_reader, args)), None)
    if origin is tuple:
        return _if_it_is(list, lambda value: tuple(map(inner, value) if inner else value))
    if inner is None or origin in (Union, UnionType):
        return inner
    return _if_it_is(list, lambda value: [inner(each) for each in value])


def _mapping_reader(read_key: Reader | None, read_value: Reader | None) -> Reader | None:
    if not (read_key or read_value):
        return None

    def read_items(value: dict[str, Any]) -> dict[Any, Any]:
        return {(read_key(key) if read_key else key): (read_value(each) if read_value else each) for key, each in value.items()}

    return _if_it_is(dict, read_items)


def _if_it_is(kind: type, reader: Reader) -> Reader:
    """Read values of this kind; any other, such as null, stays as it is."""
    return lambda value: reader(value) if isinstance(value, kind) else value


@cache
def _check_of(cls: Hashable) -> Check:
    """Return the check of an object with the fields of a dataclass as keys."""
    checks, required = _key_checks(cls)

    def check(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ValidationError("an object", value)
        for name in required:
            if name not in value:
                raise ValidationError(f"an object with the key {name!r}", sorted(value))
        for name, each in value.items():
            if name not in checks:
                raise ValidationError(f"one of the keys {', '.join(checks)}", name)
            _check_below(name, checks[name], each)

    return check


def _key_checks(cls: Any) -> tuple[dict[str, Check], list[str]]:
    """Return the checks of the keys of a dataclass, and the keys without a default."""
    hints, own = get_type_hints(cls), fields(cls)
    checks = {key.name: _check(key.hint, key.metadata) for key in list_keys(cls) if key.is_computed}
    required: list[str] = []
    for field in own:
        if field.metadata.get("is_inline"):
            inner, needed = _key_checks(hints[field.name])
            checks |= inner
            required += needed
            continue
        checks[field.name] = _check(hints[field.name], field.metadata)
        if not _has_default(field):
            required.append(field.name)
    return checks, required


def _check_below(step: object, check: Check, value: Any) -> None:
    try:
        check(value)
    except ValidationError as error:
        raise error.prepend(step) from None


def _check(hint: Any, metadata: Mapping[str, Any]) -> Check:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: None
    if isinstance(hint, type) and issubclass(hint, JsonData):
        return _check_object if _reads_itself(hint) else _check_of(hint)  # type: ignore[arg-type]  # as above
    if origin in (Union, UnionType):
        return _check_union(hint, [_check(each, metadata) for each in args])
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return _check_choice(list(args) or [each.value for each in hint])
    if origin in (Sequence, tuple, list):
        return _check_list(_check(args[0], without_sizes(metadata)), metadata, _check_all_at_once(args[0], metadata))
    if origin in (Mapping, dict):
        check = _check(args[1], without_sizes(metadata))
        return _check_mapping(check, metadata, _key_pattern(args[0], metadata), _check_all_at_once(args[1], metadata))
    # Any other class is checked when it is made.
    return _check_scalar(hint, metadata) if hint in TYPES else lambda value: None


def _reads_itself(hint: type[JsonData]) -> bool:
    return hint.from_json.__func__ is not JsonData.from_json.__func__  # type: ignore[attr-defined]  # bound methods have it


def _check_object(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise ValidationError("an object", value)


def _check_union(hint: Any, checks: Sequence[Check]) -> Check:
    may_be_none = NoneType in get_args(hint)

    def check(value: Any) -> None:
        if value is None and may_be_none:
            return None
        errors = []
        for each in checks:
            try:
                return each(value)
            except ValidationError as error:
                errors.append(error)
        # The relevant error is that of the alternative that got deepest into the value.
        deepest = max(errors, key=lambda error: len(error.path))
        raise deepest if deepest.path else ValidationError(" or ".join(dict.fromkeys(each.allowed for each in errors)), value)

    return check


def _check_choice(choices: Sequence[Any]) -> Check:
    def check(value: Any) -> None:
        if value not in choices:
            raise ValidationError(f"one of {', '.join(map(repr, map(str, choices)))}", value)

    return check


def without_sizes(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of what is in a list or an object: its sizes are those of the list or the object itself."""
    max_size, *inner_sizes = metadata.get("inner_sizes") or (None,)
    return {**metadata, "min_size": 0, "max_size": max_size, "inner_sizes": inner_sizes}


def _check_all_at_once(hint: Any, metadata: Mapping[str, Any]) -> Callable[[Collection[Any]], bool]:
    """Return a function that returns whether all of many values are allowed numbers: it compares two of them with the range."""
    kinds, is_in_range = _NUMBERS.get(hint, frozenset()), _check_range(metadata)

    def are_allowed(values: Collection[Any]) -> bool:
        is_known = values and kinds.issuperset(map(type, values)) and _are_finite(values)
        return bool(is_known) and is_in_range(min(values)) and is_in_range(max(values))

    return are_allowed


def _check_list(check: Check, metadata: Mapping[str, Any], are_allowed: Callable[[Collection[Any]], bool]) -> Check:
    min_size, max_size = metadata.get("min_size", 0), metadata.get("max_size")

    def check_all(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise ValidationError("a list", value)
        if len(value) < min_size:
            raise ValidationError(f"a list of at least {min_size}", value)
        if max_size is not None and len(value) > max_size:
            raise ValidationError(f"a list of at most {max_size}", value)
        if not are_allowed(value):
            for index, each in enumerate(value):
                _check_below(index, check, each)

    return check_all


def _are_finite(values: Collection[float]) -> bool:
    """Return whether all numbers are finite; an integer that no float can hold is not."""
    try:
        return all(map(math.isfinite, values))
    except OverflowError:
        return False


def _key_pattern(hint: Any, metadata: Mapping[str, Any]) -> str | None:
    names = "|".join(list_enum_values(hint))
    return names or metadata.get("key_pattern")


def list_enum_values(hint: Any) -> list[str]:
    """Return the values of an enumeration; empty for another type."""
    return [each.value for each in hint] if isinstance(hint, type) and issubclass(hint, Enum) else []


def _check_mapping(
    check: Check, metadata: Mapping[str, Any], key_pattern: str | None, are_allowed: Callable[[Collection[Any]], bool]
) -> Check:
    pattern = re.compile(key_pattern) if key_pattern else None
    max_size = metadata.get("max_size")

    def check_all(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ValidationError("an object", value)
        if max_size is not None and len(value) > max_size:
            raise ValidationError(f"an object of at most {max_size} keys", value)
        are_checked = are_allowed(value.values())
        for key, each in value.items():
            if not isinstance(key, str):
                raise ValidationError("text as a key", key)
            if pattern and not pattern.fullmatch(key):
                raise ValidationError(f"a key of the form {pattern.pattern}", key)
            if not are_checked:
                _check_below(key, check, each)

    return check_all


def _check_scalar(hint: Any, metadata: Mapping[str, Any]) -> Check:
    kind = TYPES[hint]
    allowed = _NAMES.get(kind, kind)
    if hint in _NUMBERS:
        allowed += "".join(f" {_SIGNS[name]} {limit:g}" for name, limit in metadata.get("range", {}).items())
        return _check_number(_NUMBERS[hint], allowed, _check_range(metadata))
    pattern = re.compile(metadata["pattern"]) if hint is str and metadata.get("pattern") else None
    min_size, max_size = metadata.get("min_size", 0), metadata.get("max_size") or math.inf

    def check(value: Any) -> None:
        if type(value) is not hint and not (hint is str and isinstance(value, str)):
            raise ValidationError(allowed, value)
        if pattern and not pattern.fullmatch(value):
            raise ValidationError(metadata.get("form") or f"text of the form {pattern.pattern}", value)
        if hint is str and len(value) < min_size:
            raise ValidationError(f"text of at least {min_size} characters", value)
        if hint is str and len(value) > max_size:
            raise ValidationError(f"text of at most {max_size} characters", value)

    return check


def _check_number(kinds: Collection[type], allowed: str, is_in_range: Callable[[float], bool]) -> Check:
    def check(value: Any) -> None:
        if type(value) not in kinds or not is_in_range(value):
            raise ValidationError(allowed, value)

    return check


def _check_range(metadata: Mapping[str, Any]) -> Callable[[float], bool]:
    """Return a function that returns whether a number is in the range of its field."""
    limits, may_be_infinite = metadata.get("range", {}), not metadata.get("is_finite", True)
    at_least, at_most = limits.get("at_least", -math.inf), limits.get("at_most", math.inf)
    above, below = limits.get("above", -math.inf), limits.get("below", math.inf)

    def is_in_range(value: float) -> bool:
        if not _are_finite([value]):
            return may_be_infinite and isinstance(value, float)
        return bool(at_least <= value <= at_most and above < value < below)

    return is_in_range
