"""Make the reference pages with tables: the keys of files and clusters, the modes and inputs, and the marker's arguments.

The description of a field is the comment beside it in its class, that of a key the description in its schema.
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
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.spec import INPUTS, MODELS, VARIABLE_UPDATES
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import MODE_OPTIONS, VariableUpdate

Row = Sequence[str]


def table(headings: Row, rows: Sequence[Row]) -> str:
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in [headings, ["---"] * len(headings), *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def comments(cls: type) -> Mapping[str, str]:
    """Return the comment beside each field of a class."""
    found = re.findall(r"(?m)^    (\w+): [^#\n]*?(?:  # (.*))?$", inspect.getsource(cls))
    return {name: _with_links(text) for name, text in found}


def _with_links(text: str) -> str:
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", text).replace("packing.py", "its mode")


def _default(field: Any) -> str:
    value = field.default if field.default is not MISSING else None
    return "" if field.default is MISSING else "none" if value is None else f"`{json.dumps(value)}`"


# -- files --


def files() -> str:
    sections = []
    for content, title, about, parts in FILES:
        schema = load_schema(content)
        sections += [f"## {title}", about, table(HEAD, [*_rows(schema, schema)])]
        for part, heading in parts.items():
            sections += [f"### {heading}", table(HEAD, [*_rows(schema["$defs"][part], schema)])]
    sections.insert(sections.index("### " + A_RUN), f"### {A_SPEC}")
    sections.insert(sections.index("### " + A_RUN), table(SPEC_HEAD, spec_rows()))
    return "\n\n".join([FILES_HEAD, *sections, ""])


HEAD = ("Key", "Type", "Description")
SPEC_HEAD = ("Field", "Default", "Description")
A_SPEC, A_RUN = "A spec", "A run"
FILES = (
    (SessionInfo, "session.json", "The command, the cluster, and the end of the session.", {}),
    (
        Record,
        "measurements.jsonl",
        "One JSON object in each line: a measurement, its test, and its verdict.",
        {"run": A_RUN},
    ),
    (
        "baseline",
        "baselines/SYSTEM.json",
        "The accepted measurements of a system, and its published results: [Baselines](../baselines.md).",
        {"entry": "An entry", "calibrated_noise": "Noise", "provenance": "Provenance", "thresholds": "Thresholds"},
    ),
)
# Definitions that are not listed below the keys with them: of published results, or in a table of their own.
LEFT_OUT = {"machine", "source", "series", "spec", *(part for *_, parts in FILES for part in parts)}
FILES_HEAD = """# Files

Every session leaves a folder, `perf_results/<time>-<id>/`, and every system has a file of accepted measurements. All of them
are checked by JSON schemas at each read. This page is made from the schemas. [What the numbers mean](../numbers.md) describes
the numbers. [A spec](#a-spec) has the arguments of `train(...)` and of `dtfperf run`."""


def _rows(part: Mapping[str, Any], schema: Mapping[str, Any], above: str = "") -> Iterator[Row]:
    """Yield a row for each key, and for the keys inside of it that no other table has."""
    for name, value in part.get("properties", {}).items():
        name_of_part, definition = _follow(value, schema)
        meaning = value.get("description") or definition.get("description", "")
        optional = "" if name in part.get("required", ()) else ", optional"
        yield f"`{above}{name}`", f"{_kind(value, schema)}{optional}", meaning
        within, mark = (value["items"], "[]") if "items" in value else (value, "")
        name_of_part, definition = _follow(within, schema)
        if name_of_part not in LEFT_OUT:
            yield from _rows(definition or within, schema, f"{above}{name}{mark}.")


def _follow(value: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the content of the definition in the schema that a value refers to; empty if it refers to none."""
    name = value.get("$ref", "").removeprefix("#/$defs/")
    return name, schema.get("$defs", {}).get(name, {})


KINDS = {"integer": "whole number", "object": "object", "array": "list", "string": "text", "boolean": "true or false"}


def _kind(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the type of a value in one or two words."""
    name, _ = _follow(value, schema)
    if name in LEFT_OUT:
        return " or ".join([name, *(["null"] if "null" in value.get("type", ()) else [])])
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
    """Return a row for each field of a spec. Fields without a description have tf_cnn_benchmarks' name and meaning."""
    return [(f"`{each.name}`", _default(each), _describe_field(each) or BENCHMARKS) for each in fields(Fields)]


def _describe_field(each: Any) -> str:
    return _with_links(each.metadata.get("description", ""))


BENCHMARKS = "as in tf_cnn_benchmarks: [Training](../training.md), [modes](../variable-update.md)"


# -- clusters --


def clusters() -> str:
    known = comments(ClusterConfig)
    common = [(f"`{name}`", kind.allowed, known.get(name, "")) for name, kind in KEYS.items()]
    limits = [(f"`{each.name}`", f"{each.default:g}", comments(Limits)[each.name]) for each in fields(Limits)]
    sections = [
        "## Every cluster",
        table(("Key", "Type", "Description"), common),
        "### limits",
        table(("Key", "Default (seconds)", "Description"), limits),
    ]
    for name, backend in BACKENDS.items():
        sections += [f"## {name}", f"By default, `max_jobs` allows {_jobs(backend.max_jobs)} at the same time."]
        sections.append(table(("Key", "Type"), [(f"`{key}`", kind.allowed) for key, kind in backend.keys.items()]))
    return "\n\n".join([CLUSTERS_HEAD, *sections, ""])


def _jobs(number: int) -> str:
    return "one allocation" if number == 1 else f"{number} allocations"


CLUSTERS_HEAD = """# Keys of clusters.toml

These are the types of the keys, as the file is checked. [clusters.toml](../clusters.md) has their descriptions and defaults.
`training` and `models.NAME` take every field of a [spec](files.md#a-spec) except its model, and `repeats`, `min_repeats`,
`margin`."""


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
            table(("Mode", "Processes", "Steps", "Inputs", "Requirements"), rows),
            "## Options of some modes",
            table(("Option", "Modes"), options),
            "## Inputs",
            "The inputs and their models. [Inputs](../inputs.md) describes them.",
            table(("Data", "Requirements", "Test set", "Models"), inputs),
            "",
        ]
    )


MODES_HEAD = """# Tables of modes and inputs

These are the processes and options of each way of sharing variables. [Ways of sharing variables](../variable-update.md)
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
    """Return the models that an input can feed."""
    fed = [model for model, row in MODELS.items() if data in row.data]
    return "all" if len(fed) == len(MODELS) else _names(fed)


# -- the marker --


def marker() -> str:
    known = comments(Marker)
    rows = [(f"`{each.name}`", _default(each), known[each.name] or MARKED[each.name]) for each in fields(Marker)]
    return "\n\n".join([MARKER_HEAD, table(("Argument", "Default", "Description"), rows), ""])


# Descriptions of arguments with the names of options.
MARKED = {
    "gpus": "device counts to test, as a list",
    "num_ps": "parameter servers, as a list",
    "variable_update": "modes, as a list",
}
MARKER_HEAD = """## The marker

`@pytest.mark.dtfperf(...)` has these arguments for one test. Options of the command line override them."""
