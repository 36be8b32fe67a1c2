"""Variants: the software stacks that are compared, as a command line or a file defines them."""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pytest_dtfperf.clusters.file import Validator
from pytest_dtfperf.clusters.named import BACKENDS, KEYS, ClusterConfig
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.errors import SpecError, UsageError, describe_unknown_name, show_value
from pytest_dtfperf.formats import parse_json_value
from pytest_dtfperf.spec import Spec

STACK_KEYS = ("python", "setup", "environment", "container", "container_python")  # of a cluster's table
SOURCE_KEYS = ("git", "repo", "packages")  # of a stack that is built before it is used: session/builds.py
LIST_KEYS = ("setup", "environment", "packages")
# Fields that a variant cannot set: what is trained must be the same, and `environment` is that of the cluster's key.
FIXED_FIELDS = ("model", "own_model", "gpus", "environment")
FIELDS = tuple(name for name in Spec.__dataclass_fields__ if name not in FIXED_FIELDS)
SOURCES = {"git": "a ref of a commit", "repo": "the folder of a repository", "packages": "a list of requirements"}

Setting = str | int | float | bool | Sequence[str] | None  # of a variant
_HEAD = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.+-]*):(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class VariantSource(JsonData):
    """What a stack is built from before it is used."""

    git: str = field(default="", metadata=describe("Commit, by any of its names", omit_empty=True))
    repo: str = field(default="", metadata=describe("Folder of its repository; missing: this one", omit_empty=True))
    packages: Sequence[str] = field(default=(), metadata=describe("Requirements to install", omit_empty=True))
    setup: Sequence[str] | str = field(default=(), metadata=describe("Shell lines that build it", omit_empty=True))


@dataclass(frozen=True)
class Variant:
    """A software stack: what it changes of the cluster's, and of each training."""

    name: str
    stack: Mapping[str, Setting] = field(default_factory=dict)  # STACK_KEYS
    fields: Mapping[str, Setting] = field(default_factory=dict)  # of the spec
    source: VariantSource = field(default_factory=VariantSource)

    @classmethod
    def from_settings(cls, name: str, settings: Mapping[str, Any], where: str) -> Self:
        """Return the variant with these settings. Raises `UsageError` with all that are invalid, one line each."""
        problems = [problem for key, value in settings.items() if (problem := _check_setting(key, value))]
        if problems:
            raise UsageError("\n".join(f"{where} {problem}" for problem in problems))
        is_built = "git" in settings or "packages" in settings
        if "repo" in settings and "git" not in settings:
            raise UsageError(f"{where} repo is the repository of a commit: add git=REF")
        of_source = (*SOURCE_KEYS, "setup") if is_built else ()
        return cls(
            name,
            {key: value for key, value in settings.items() if key in STACK_KEYS and key not in of_source},
            {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items() if key in FIELDS},
            VariantSource.from_json({key: value for key, value in settings.items() if key in of_source}),
        )

    @property
    def settings(self) -> dict[str, Setting]:
        """All of its settings, as JSON has them."""
        found = {**self.source.to_json(), **self.stack, **self.fields}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}

    def apply_to_cluster(self, config: ClusterConfig) -> ClusterConfig:
        """Return the cluster with this stack. Set-up lines and variables are added to the cluster's.

        Raises:
            UsageError: the cluster's backend has no such key.
        """
        changes: dict[str, Any] = {key: value for key, value in self.stack.items() if key not in LIST_KEYS}
        if variables := self.stack.get("environment"):
            changes["environment"] = [*config.environment, *_as_list(variables)]
        if lines := self.stack.get("setup"):
            if "setup" not in BACKENDS[config.backend].keys:
                raise UsageError(
                    f"variant {self.name}: setup: cluster {config.name} ({config.backend}) has no set-up lines. "
                    "Use python or environment"
                )
            before = config.backend_keys.get("setup", ())
            both = lines if isinstance(lines, str) or isinstance(before, str) else [*before, *_as_list(lines)]
            _check_value(self.name, "setup", both, BACKENDS[config.backend].keys["setup"])
            changes["backend_keys"] = {**config.backend_keys, "setup": both}
        return replace(config, **changes) if changes else config

    def apply_to_spec(self, spec: Spec) -> Spec:
        """Return the training with this variant's fields. Raises `UsageError` if it is impossible."""
        try:
            return spec.replace(**self.fields) if self.fields else spec
        except SpecError as error:
            raise UsageError(f"variant {self.name}: {error}") from error


def is_variant(text: str) -> bool:
    """Return whether an argument defines a variant, `NAME: KEY=VALUE ...`. In `module:model`, no blank follows the colon."""
    return bool(_HEAD.fullmatch(text))


def parse_variant(text: str) -> Variant:
    """Return the variant of `NAME: KEY=VALUE ...`, with the values quoted as in a shell. Raises `UsageError`."""
    found = _HEAD.fullmatch(text)
    if not found:
        raise UsageError(f'{text!r} is no variant: write NAME: KEY=VALUE ..., as in "new: python=/venvs/tf221/bin/python"')
    name, rest = found[1], found[2] or ""
    try:
        arguments = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"variant {name}: {rest!r} cannot be read: {error}") from error
    settings: dict[str, Setting] = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"variant {name}: {word!r} must be KEY=VALUE")
        if key in LIST_KEYS:
            settings[key] = _extend(settings.get(key), _parse_list(key, value))
        elif key in settings:
            raise UsageError(f"variant {name}: {key} is given twice: {settings[key]!r} and {value!r}")
        else:
            settings[key] = value if key in (*STACK_KEYS, *SOURCE_KEYS) else parse_json_value(value)
    return Variant.from_settings(name, settings, f"variant {name}:")


def load_variants(path: Path) -> list[Variant]:
    """Return the variants of a TOML file with a table for each, the reference first. Raises `UsageError`."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError, TOMLDecodeError
        raise UsageError(f"{path} is no TOML: {error}") from error
    found = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} must be a table with the settings of a variant, not {show_value(table)}")
        if not is_variant(f"{name}:"):
            raise UsageError(f"{path}: [{show_value(name)}] is no name of a variant: letters, digits and _.+- only")
        found.append(Variant.from_settings(name, table, f"{path}: [{name}]"))
    return found


def list_differences(one: Variant, other: Variant, config: ClusterConfig) -> list[str]:
    """Return each setting that differs, as `KEY: VALUE -> VALUE`. Raises `UsageError`."""
    sides = [{key: _format_value(value) for key, value in _collect_settings(each, config).items()} for each in (one, other)]
    names = dict.fromkeys([*STACK_KEYS, *sides[0], *sides[1]])
    pairs = ((name, *(side.get(name, "as usual") for side in sides)) for name in names)
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]


def make_same(variant: Variant) -> list[Variant]:
    """Return a variant and its copy under another name, to measure the noise that is left between equal stacks."""
    return [variant, replace(variant, name=f"{variant.name}-again")]


def _collect_settings(variant: Variant, config: ClusterConfig) -> dict[str, Setting]:
    """Return a variant's fields, and the cluster's keys of its stack as they become, if they are set."""
    found = variant.apply_to_cluster(config)
    stack = {key: found.backend_keys.get(key) if key == "setup" else getattr(found, key) for key in STACK_KEYS}
    return {**{key: value for key, value in stack.items() if value}, **variant.source.to_json(), **variant.fields}


def _check_setting(key: str, value: Any) -> str | None:
    """Return what is wrong with a setting, or None."""
    if key in SOURCE_KEYS:
        is_right = isinstance(value, list) and value and all(map(_is_text, value)) if key == "packages" else _is_text(value)
        return None if is_right else f"{key} must be {SOURCES[key]}, not {show_value(value)}"
    if key in FIXED_FIELDS and key not in STACK_KEYS:
        return f"{key} cannot differ between variants: name it with the training"
    if key not in STACK_KEYS:
        if key not in FIELDS:
            return describe_unknown_name("key", key, [*STACK_KEYS, *SOURCE_KEYS, *FIELDS])
        try:
            Spec.check_field(key, tuple(value) if isinstance(value, list) else value)
        except SpecError as error:
            return str(error)
        return None
    if key == "setup":
        is_right = isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
        return None if is_right and value else f"setup must be a list of shell lines, not {show_value(value)}"
    return None if KEYS[key].accepts(value) else f"{key} must be {KEYS[key].allowed}, not {show_value(value)}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _check_value(variant: str, key: str, value: Any, validator: Validator) -> None:
    if not validator.accepts(value):
        raise UsageError(f"variant {variant}: {key} must be {validator.allowed}, not {show_value(value)}")


def _parse_list(key: str, text: str) -> Any:
    """Return the items of a JSON list, or the text as the only one; `setup=uv` is a value of its own."""
    parsed = parse_json_value(text)
    return parsed if isinstance(parsed, list) else text if (key, text) == ("setup", "uv") else [text]


def _extend(before: Setting, more: Setting) -> Setting:
    return more if before is None else [*_as_list(before), *_as_list(more)]


def _as_list(value: Setting) -> Sequence[str]:
    """Return the items of a checked setting that is a list, or a text as the only item."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)]


def _format_value(value: Setting) -> str:
    return value if isinstance(value, str) else json.dumps(value)
