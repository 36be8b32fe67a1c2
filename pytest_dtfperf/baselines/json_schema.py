"""JSON Schemas of the data model, made from the fields of its dataclasses (`codec.py`). Hosts do not need them."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pytest_dtfperf.codec import TYPES, JsonData, list_enum_values, list_keys, without_sizes

Schema = dict[str, Any]

_RANGE = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum", "below": "exclusiveMaximum"}


def json_schema(cls: type[JsonData]) -> Schema:
    """Return the JSON Schema of a dataclass, with nested ones as its definitions, and further rules of `schema_rules`."""
    definitions: dict[str, Schema] = {}
    own = _object_schema(cls, definitions)
    return {**own, "$defs": definitions} if definitions else own


def name_definition(cls: type) -> str:
    """Return the name of a dataclass in a schema: `StepBreakdown` is `step_breakdown`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def _object_schema(cls: Any, definitions: dict[str, Schema]) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for key in list_keys(cls):
        if key.metadata.get("is_inline"):
            inner = _object_schema(key.hint, definitions)
            properties |= inner["properties"]
            required += inner["required"]
            continue
        is_required = not key.metadata.get("omit_empty")  # it is always written, and otherwise never null
        hint = key.hint if is_required else _remove_none(key.hint)
        properties[key.name] = _description(key.metadata) | _schema(hint, key.metadata, definitions)
        required += [key.name] * is_required
    rules = getattr(cls, "schema_rules", {})
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties, **rules}


def _remove_none(hint: Any) -> Any:
    """Return `X` of `X | None`, and other types as they are."""
    types = [each for each in get_args(hint) if each is not NoneType]
    return Union[tuple(types)] if get_origin(hint) in (Union, UnionType) else hint  # noqa: UP007 - of a list of types


def _description(metadata: Mapping[str, Any]) -> Schema:
    text, unit = metadata.get("description", ""), metadata.get("unit", "")
    return {"description": f"{text} ({unit})" if unit else text} if text else {}


def _schema(hint: Any, metadata: Mapping[str, Any], definitions: dict[str, Schema]) -> Schema:
    origin, args = get_origin(hint), get_args(hint)
    if (hint not in TYPES and isinstance(hint, type) and not issubclass(hint, JsonData | Enum)) or hint is Any:
        return {}
    if isinstance(hint, type) and issubclass(hint, JsonData):
        name = name_definition(hint)
        if name not in definitions:
            definitions[name] = {}  # as long as it is made
            definitions[name] = {rule: value for rule, value in _object_schema(hint, definitions).items() if rule != "type"}
        return {"type": "object", "$ref": f"#/$defs/{name}"}  # the type is here, so that it can be one of several
    if origin in (Union, UnionType):
        return _join_schemas([_schema(each, metadata, definitions) for each in args])
    if origin is Literal:
        return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [each.value for each in hint]}
    if origin in (Sequence, tuple, list):
        size = {"minItems": metadata["min_size"]} if metadata.get("min_size") else {}
        size |= {"maxItems": metadata["max_size"]} if metadata.get("max_size") else {}
        return {"type": "array", **size, "items": _schema(args[0], without_sizes(metadata), definitions)}
    if origin in (Mapping, dict):
        items = _schema(args[1], without_sizes(metadata), definitions)
        size = {"maxProperties": metadata["max_size"]} if metadata.get("max_size") else {}
        names: Schema = {"propertyNames": {"pattern": f"^({metadata['key_pattern']})$"}} if metadata.get("key_pattern") else {}
        if keys := list_enum_values(args[0]):
            names = {"propertyNames": {"enum": keys}}
        return {"type": "object", "additionalProperties": items, **size, **names}
    found: Schema = {"type": TYPES[hint]}
    if hint in (int, float):
        found |= {_RANGE[name]: limit for name, limit in metadata.get("range", {}).items()}
    if hint is str and metadata.get("pattern"):
        found["pattern"] = f"^({metadata['pattern']})$"
    if hint is str and metadata.get("min_size"):
        found["minLength"] = metadata["min_size"]
    if hint is str and metadata.get("max_size"):
        found["maxLength"] = metadata["max_size"]
    return found


def _join_schemas(schemas: Sequence[Schema]) -> Schema:
    """Join alternatives: their types go into one list, beside other keywords, which apply only to their own type."""
    joined: Schema = {"type": []}
    for each in schemas:
        if "enum" in each:
            return {"enum": [*each["enum"], *([None] if {"type": "null"} in schemas else [])]}
        kinds = each.get("type", [])
        joined = {**joined, **each, "type": [*joined["type"], *([kinds] if isinstance(kinds, str) else kinds)]}
    return joined
