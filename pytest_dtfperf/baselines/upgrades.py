"""Baseline files of older versions, made into what they would be today. What they could not say stays unsaid.

A new schema gets a row here: how a file of the one before becomes one of it. Rows may meet damaged files, for only the newest
schema is checked, and that afterwards; what has not the form they know they leave as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pytest_dtfperf.errors import BaselineFileError

SCHEMA = 2


def upgraded(data: Any, where: str) -> Any:
    """The file's content under the newest schema. Raises `BaselineFileError` if a newer version has written it."""
    version = _version(data)
    while version in UPGRADES:
        data = {**UPGRADES[version](data), "schema": version + 1}
        version += 1
    if version > SCHEMA:
        raise BaselineFileError(
            f"{where}: written by a newer version of pytest-dtfperf (its schema is {version}, this one reads 1 to {SCHEMA}); "
            "install that: pip install --upgrade pytest-dtfperf"
        )
    return data


def _version(data: Any) -> int:
    """0 where it does not tell."""
    found = data.get("schema") if isinstance(data, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _say_which_program_trained(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nobody has noted it before; noise and thresholds, which are new, too, need not be there."""
    entries = data.get("entries")
    if not isinstance(entries, dict):
        return data
    return {**data, "entries": {key: _each(found) for key, found in entries.items()}}


def _each(found: Any) -> Any:
    return [_with_program(entry) for entry in found] if isinstance(found, list) else found


def _with_program(entry: Any) -> Any:
    fingerprint = entry.get("fingerprint") if isinstance(entry, dict) else None
    if not isinstance(fingerprint, dict):
        return entry
    return {**entry, "fingerprint": {"program": {}, **fingerprint}}


UPGRADES: Mapping[int, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {1: _say_which_program_trained}
