"""Pages of reference made of tables: what stands in files, which keys clusters have, what each mode can do, the marker's words.

A field's meaning is the comment beside it in its class, a key's the description in its schema.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from pytest_dtfperf.baselines.files import load_schema
from pytest_dtfperf.clusters.named import BACKENDS, KEYS, ClusterConfig, Limits
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.spec import INPUTS, MODELS, VARIABLE_UPDATES
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import MODE_OPTIONS, VariableUpdate

Row = Sequence[str]


def table(headings: Row, rows: Sequence[Row]) -> str:
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in [headings, ["---"] * len(headings), *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def comments(of: type) -> Mapping[str, str]:
    """What stands beside each field of a class."""
    found = re.findall(r"(?m)^    (\w+): [^#\n]*?(?:  # (.*))?$", inspect.getsource(of))
    return {name: _as_sentence(words) for name, words in found}


def _as_sentence(words: str) -> str:
    return words.replace("docs/command.md", "[An external command](../command.md)").replace("packing.py", "its mode")


def _default(field: Any) -> str:
    value = field.default if field.default is not MISSING else None
    return "" if field.default is MISSING else "none" if value is None else f"`{json.dumps(value)}`"


# -- files --


def files() -> str:
    sections = []
    for name, title, about, parts in FILES:
        schema = load_schema(name)
        sections += [f"## {title}", about, table(HEAD, [*_rows(schema, schema)])]
        for part, heading in parts.items():
            sections += [f"### {heading}", table(HEAD, [*_rows(schema["$defs"][part], schema)])]
    sections.insert(sections.index("### " + A_RUN), f"### {A_SPEC}")
    sections.insert(sections.index("### " + A_RUN), table(SPEC_HEAD, spec_rows()))
    return "\n\n".join([FILES_HEAD, *sections, ""])


HEAD = ("key", "is", "meaning")
SPEC_HEAD = ("field", "unless told otherwise", "meaning")
A_SPEC, A_RUN = "A spec", "A run"
FILES = (
    ("session", "session.json", "What was run, where, and how it ended.", {}),
    (
        "measurement",
        "measurements.jsonl",
        "One JSON object in each line: a measurement, the test it was made for, and what became of it.",
        {"run": A_RUN},
    ),
    (
        "baseline",
        "baselines/SYSTEM.json",
        "What was accepted on a system, and what others published of it: [Baselines](../baselines.md).",
        {"entry": "An entry", "noise": "Noise", "provenance": "Provenance", "thresholds": "Thresholds"},
    ),
)
FILES_HEAD = """# Files

Every session leaves a folder, `perf_results/<time>-<id>/`, and every system has a file of accepted measurements. All of them
are held against JSON schemas
whenever they are read. This page is made of these. What the numbers are: [What the
numbers mean](../numbers.md).
[A spec](#a-spec) is what `train(...)` takes, and what `dtfperf run` is told."""


def _rows(part: Mapping[str, Any], schema: Mapping[str, Any], above: str = "") -> Iterator[Row]:
    """Of each key, and of what is within it where no other table has that."""
    for name, value in part.get("properties", {}).items():
        of_definition = schema.get("$defs", {}).get(value.get("$ref", "").rpartition("/")[2], {})
        meaning = value.get("description") or of_definition.get("description", "")
        optional = "" if name in part.get("required", ()) else ", or not there"
        yield f"`{above}{name}`", f"{_kind(value, schema)}{optional}", meaning
        within, mark = (value["items"], "[]") if "items" in value else (value, "")
        yield from _rows(within, schema, f"{above}{name}{mark}.")


KINDS = {"integer": "whole number", "object": "object", "array": "list", "string": "text", "boolean": "true or false"}


def _kind(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """In a word or two."""
    if "$ref" in value and "type" not in value:
        file, _, definition = value["$ref"].partition("#/$defs/")
        found = schema.get("$defs", {}).get(definition, {}) if not file else {}
        return definition if found.get("type") == "object" else _kind(found, schema) if found else "object"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return " or ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    kinds = value.get("type", "anything")
    names = [KINDS.get(each, each) for each in ([kinds] if isinstance(kinds, str) else kinds)]
    if names[0] == "list" and "items" in value:
        names[0] = f"list of {_kind(value['items'], schema)}"
    return " or ".join(names)


def spec_rows() -> Sequence[Row]:
    """Of all fields of a spec. What has no comment has tf_cnn_benchmarks' name and meaning."""
    known = comments(Fields)
    return [(f"`{each.name}`", _default(each), known[each.name] or BENCHMARKS) for each in fields(Fields)]


BENCHMARKS = "as in tf_cnn_benchmarks: [Training](../training.md), [modes](../variable-update.md)"


# -- clusters --


def clusters() -> str:
    known = comments(ClusterConfig)
    common = [(f"`{name}`", kind.what, known.get(name, "")) for name, kind in KEYS.items()]
    limits = [(f"`{each.name}`", f"{each.default:g}", comments(Limits)[each.name]) for each in fields(Limits)]
    sections = [
        "## Every cluster",
        table(("key", "must be", "note"), common),
        "### limits",
        table(("key", "seconds unless told otherwise", "note"), limits),
    ]
    for name, backend in BACKENDS.items():
        sections += [f"## {name}", f"Up to {_jobs(backend.max_jobs)} at once, unless `max_jobs` says otherwise."]
        sections.append(table(("key", "must be"), [(f"`{key}`", kind.what) for key, kind in backend.keys.items()]))
    return "\n\n".join([CLUSTERS_HEAD, *sections, ""])


def _jobs(number: int) -> str:
    return "one allocation" if number == 1 else f"{number} allocations"


CLUSTERS_HEAD = """# Keys of clusters.toml

What each key must be, as the file is checked; [clusters.toml](../clusters.md) says what each means, and what holds where it is
not said. `training` and `models.NAME` take every field of a [spec](files.md#a-spec) but
its model, and `repeats`, `min_repeats`, `margin`."""


# -- modes --


def modes() -> str:
    rows = [
        (f"`{name}`", _processes(mode), _steps(mode), _fed_from(mode), _needs(mode)) for name, mode in VARIABLE_UPDATES.items()
    ]
    options = [
        (f"`{name}`", _names(mode for mode, row in VARIABLE_UPDATES.items() if name in row.knows)) for name in MODE_OPTIONS
    ]
    inputs = [
        (f"`{name}`", "`data_dir`" if each.needs_data_dir else "", "yes" if each.test_set else "", _models(name))
        for name, each in INPUTS.items()
    ]
    return "\n\n".join(
        [
            MODES_HEAD,
            table(("mode", "processes", "steps", "fed from", "needs"), rows),
            "## Options that only some modes know",
            table(("option", "modes"), options),
            "## Inputs",
            "What feeds which model. What each is: [Inputs](../inputs.md).",
            table(("data", "needs", "test set", "models"), inputs),
            "",
        ]
    )


MODES_HEAD = """# Modes and inputs, as tables

What each way of sharing variables is made of, and what it can be told. [Ways of sharing variables](../variable-update.md)
explains them."""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _processes(mode: VariableUpdate) -> str:
    workers = (
        "one worker with all devices"
        if mode.one_process
        else "a worker for each device"
        if mode.one_device
        else "workers, on CPUs of one device each"
        if mode.one_cpu
        else "workers"
    )
    return f"parameter servers and {workers}" if mode.parameter_servers else workers


def _steps(mode: VariableUpdate) -> str:
    if not mode.lockstep:
        return "each worker's own"
    return " or ".join(
        word for word, known in (("synchronous", mode.synchronous), ("asynchronous", mode.asynchronous)) if known
    )


def _fed_from(mode: VariableUpdate) -> str:
    return "all inputs" if mode.inputs is None else ", ".join(mode.inputs)


def _needs(mode: VariableUpdate) -> str:
    return f"`{mode.requires}`" if mode.requires else ""


def _models(data: str) -> str:
    """Those that an input feeds, where it feeds not all."""
    fed = [model for model, row in MODELS.items() if data in row.data]
    return "all" if len(fed) == len(MODELS) else _names(fed)


# -- the marker --


def marker() -> str:
    known = comments(Marker)
    rows = [(f"`{each.name}`", _default(each), known[each.name] or MARKED[each.name]) for each in fields(Marker)]
    return "\n\n".join([MARKER_HEAD, table(("word", "unless told otherwise", "meaning"), rows), ""])


# What options of the same name say: the marker says it for one test, where the command line does not.
MARKED = {
    "gpus": "device counts to test, as a list",
    "num_ps": "parameter servers, as a list",
    "variable_update": "modes, as a list",
}
MARKER_HEAD = """## The marker

`@pytest.mark.dtfperf(...)` says it for one test. What the command line says goes before it."""
