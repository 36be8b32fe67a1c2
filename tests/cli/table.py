"""All commands of `dtfperf` by their names; and what each prints with --json, held against the shape that is documented."""

import argparse
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pytest_dtfperf.cli.options import OTHER_KEYS, make_parser


@cache
def everything() -> Mapping[str, argparse.ArgumentParser]:
    """`history changes` and its parser; those that only have commands of their own, and the one of all, are there, too."""
    return dict(_all(make_parser()))


def _all(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield of.prog.removeprefix("dtfperf").strip(), of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in dict.fromkeys(action.choices.values()):
                yield from _all(each)


@cache
def commands() -> Mapping[str, argparse.ArgumentParser]:
    """Those that do something."""
    return {name: each for name, each in everything().items() if each.get_default("run")}


def read(command: str, out: str) -> Any:
    """The document, or a list of them where a command prints one for each of many. Nothing else is on stdout."""
    shape, is_lines = commands()[command].get_default("shape"), commands()[command].get_default("is_lines")
    documents = [json.loads(line) for line in out.splitlines()]
    for document in documents:
        has_shape(document, shape, command)
    if is_lines:
        return documents
    (document,) = documents
    return document


def has_shape(found: Any, shape: Any, where: str) -> None:
    """The keys are those that are documented, all the way down."""
    if isinstance(shape, str):
        assert shape, where
    elif isinstance(shape, list):
        assert isinstance(found, list), where
        for each in found:
            has_shape(each, shape[0], where)
    else:
        assert isinstance(found, dict), where
        documented = shape.keys() - {OTHER_KEYS}
        assert documented <= found.keys(), where
        assert OTHER_KEYS in shape or found.keys() == documented, where
        for name in documented:
            has_shape(found[name], shape[name], f"{where}: {name}")
