import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.files import (
    IRI_GRAMMAR,
    load,
    load_schema,
    published_folder,
    read_baseline_file,
    validate,
)
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.datamodel.task_report import NetworkFacts
from pytest_dtfperf.errors import BaselineFileError
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import SessionInfo
from pytest_dtfperf.spec import Spec
from tests.baselines.examples import MISPLACED, calibrated_of, entry_of, measurement_of

KEY = entry_of([1.0]).key
THRESHOLD = {"model": "inception3", "gpus": 8, "at_least": 0.9, "source": "Table 1"}
PIZ_DAINT = (published_folder() / "piz-daint.json").read_text(encoding="utf-8")


def baseline_file(**changes: Any) -> dict[str, Any]:
    entry = entry_of([100.0, 101.0]).to_file_json() | changes
    return {"schema": 1, "system": "cpu-x", "entries": {KEY: [entry]}}


WRONG: dict[str, tuple[Any, str]] = {
    "not an object": ([], "must be of type object, not []"),
    "no system": ({"schema": 1}, "the key 'system' is missing"),
    "no schema": ({"system": "cpu-x"}, "the key 'schema' is missing"),
    "another schema": ({"schema": "2", "system": "cpu-x"}, 'schema: must be 1, not "2"'),
    "a newer schema": (
        {"schema": 3, "system": "cpu-x", "oracle": True},
        "written by a newer version of pytest-dtfperf (its schema is 3, this version reads 1); install that: pip install",
    ),
    "references without their source": (
        {"schema": 1, "system": "cpu-x", "references": []},
        "where there are references, there must be title, machine, sources, too",
    ),
    "no date": (
        baseline_file(provenance=entry_of([1.0]).to_json()["provenance"] | {"date": "2026-02-30T00:00:00Z"}),
        f"entries[\"{KEY}\"][0].provenance.date: '2026-02-30T00:00:00Z' is no date",
    ),
    "a threshold twice": (
        {"schema": 1, "system": "cpu-x", "thresholds": {"efficiency": [THRESHOLD, THRESHOLD]}},
        'thresholds.efficiency[1]: "inception3" on 8 devices has a threshold already',
    ),
    "a threshold in percent": (
        {"schema": 1, "system": "cpu-x", "thresholds": {"margin": 5}},
        "thresholds.margin: 5 breaks exclusiveMaximum 1",
    ),
    "a program that is no hash": (
        baseline_file(fingerprint={"hardware": {}, "software": {}, "program": {"graph": "v2"}}),
        'fingerprint.program.graph: "v2" breaks pattern',
    ),
    "unknown key at the top": (
        {"schema": 1, "system": "cpu-x", "entry": {}},
        "unknown key 'entry'. Did you mean 'entries'? Known: entries, machine, notes, references, schema, sources, system,",
    ),
    "unknown key in an entry": (
        baseline_file(sample=[1.0]),
        f"entries[\"{KEY}\"][0]: unknown key 'sample'. Did you mean 'samples'? Known: fingerprint, hosts, noise, probes,",
    ),
    "text for a number": (
        baseline_file(samples=["fast", 1.0]),
        f'entries["{KEY}"][0].samples[0]: must be of type number, not "fast"',
    ),
    "a probe of nothing": (
        baseline_file(probes={"hosts": {}, "links": {"a>b": {"per_s": 0}}, "unknown": {}, "seconds": 1}),
        f'entries["{KEY}"][0].probes.links["a>b"]: the key \'spread\' is missing',
    ),
    "no samples": (baseline_file(samples=[]), f'entries["{KEY}"][0].samples: [] breaks minItems 1'),
    "a rate of nothing": (baseline_file(samples=[0.0]), "samples[0]: 0.0 breaks exclusiveMinimum 0"),
    "a very long wrong value": (baseline_file(hosts="x" * 500), 'must be of type integer, not "xxx'),
    "two faults": (baseline_file(steps=0, hosts=0), "hosts: 0 breaks minimum 1 (and 1 more)"),
}


@pytest.mark.parametrize("data, words", WRONG.values(), ids=WRONG)
def test_wrong_files_are_refused_in_one_line(data: Any, words: str, tmp_path: Path) -> None:
    """The message has the file, the position, the error and the allowed values in one short line."""
    path = tmp_path / "cpu-x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BaselineFileError) as caught:
        read_baseline_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message
    assert len(message) < len(str(path)) + 600


TEXTS = {
    "no JSON": ("{", "no valid JSON: Expecting property name"),
    "not a number": ('{"schema": NaN}', "NaN is no number"),
    "a key twice": ('{"schema": 1, "schema": 1}', "the key 'schema' stands twice"),
    "a conflict marker": ("<<<<<<< HEAD\n{}", "no valid JSON"),
    "too large a whole number": (f'{{"schema": {10**400}}}', "10000000000000000000... is too large a number"),
    "too large a number": ('{"schema": 1e999}', "1e999 is too large a number"),
    "half a character": ('{"schema": "\\ud800"}', "surrogates not allowed"),
    "a pit": ("[" * 100_000, "nested too deeply to be read"),
    "another name": ('{"schema": 1, "system": "cpu-y"}', "system is 'cpu-y', but the file's name is 'cpu-x'"),
    "a misspelt field in a key": (
        json.dumps(baseline_file()).replace("gpus=2", "gpu=2"),
        "unknown field of a spec 'gpu'. Did you mean 'gpus'?",
    ),
    "a count that is none": (
        json.dumps(baseline_file()).replace("gpus=2", "gpus=two"),
        "gpus must be a whole number, not 'two'",
    ),
    "a field without a value": (
        json.dumps(baseline_file()).replace("optimizer=sgd", "optimizer="),
        "optimizer must be something",
    ),
    "a key that lacks a field": (json.dumps(baseline_file()).replace(" xla=false", ""), "a key is model=... batch_size=..."),
    "an unknown source": (
        PIZ_DAINT.replace('"source": "cscs', '"source": "csc').replace("piz-daint", "cpu-x"),
        "references[0].source: unknown source 'csc-2017-08'. Did you mean 'cscs-2017-08'?",
    ),
}


@pytest.mark.parametrize("text, words", TEXTS.values(), ids=TEXTS)
def test_broken_files_are_refused_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    """Invalid JSON, repeated keys, and unknown keys and sources are refused in one line."""
    path = tmp_path / "cpu-x.json"
    path.write_text(text)
    with pytest.raises(BaselineFileError) as caught:
        read_baseline_file(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_file_is_refused(tmp_path: Path) -> None:
    """A binary file is refused by name."""
    (tmp_path / "cpu-x.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BaselineFileError, match=r"cpu-x\.json: cannot be read"):
        read_baseline_file(tmp_path / "cpu-x.json")


@pytest.mark.parametrize(
    "schema",
    [load_schema("baseline"), load_schema(Record), load_schema(SessionInfo)],
    ids=["baseline", "record", "session_info"],
)
def test_schemas_are_closed_and_valid(schema: dict[str, Any]) -> None:
    """Every schema is valid for draft 2020-12, and each of its objects defines which other keys it may have."""
    from jsonschema import Draft202012Validator

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    for where, part in objects(schema, ""):
        if ".state" not in where and ".allOf." not in where:  # a fingerprint's state is open; narrowing rules
            assert "additionalProperties" in part or "$ref" in part, where


def objects(schema: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item, where)]
    if not isinstance(schema, dict):
        return []
    own = [(where, schema)] if "properties" in schema or schema.get("type") == "object" else []
    return own + [found for name, part in schema.items() for found in objects(part, f"{where}.{name}")]


def record(measurement: Measurement, **changes: Any) -> dict[str, Any]:
    return Record(id="9f3c1a", test="test_x.py::test_y", measurement=measurement).to_json() | changes


def test_measurement_passes_its_schema() -> None:
    """A stored measurement passes its schema and is read again; the schema has exactly the fields of Spec and Run."""
    measured = measurement_of([100.0, 101.0], accuracies=[0.9, 0.91], injected_slowdowns={"worker:1": 0.1}, placement=MISPLACED)
    data = json.loads(json.dumps(record(measured)))
    validate(Record, data, "measurements.jsonl:1")
    assert Record.from_json(data).measurement == measured
    schema = load_schema(Record)
    assert set(schema["$defs"]["spec"]["properties"]) == set(Spec(model="mine.cnn", own_model="layers", batch_size=1).to_json())
    optional: dict[str, Any] = {
        "step_breakdown": StepBreakdown(steps=5, wall_s=0.1, path=[], tasks={}, links=[], clock_error_s={}),
        "worker_timings": WorkerTimings(steps=20, step_s=0.1, workers={}),
        "unexplained": "it was not traced",
    }
    network = NetworkFacts(image_shape=(8, 8, 3), classes=10, parameters=20, trained_parameters=18, uncounted="a loop")
    others: dict[str, Any] = {"task_hosts": {"worker:0": "n1"}, "task_threads": {"worker:0": 2}, "network": network}
    others |= {"task_devices": {"worker:0": 1}, "out_of_step": {"worker:1": -0.2}, "round_s": 1.5}
    with_all = replace(measured.runs[0], **others, **optional)
    of_own = record(replace(measured, runs=[replace(measured.runs[0], network=network)]))
    validate(Record, json.loads(json.dumps(of_own)), "measurements.jsonl:1")
    assert set(schema["$defs"]["run"]["properties"]) == set(with_all.to_json())


def test_judged_measurement_passes_its_schema() -> None:
    """A record with efficiency, anchor, baseline, verdict and reason passes its schema."""
    judged = record(
        measurement_of([100.0]),
        efficiency=1.02,
        anchor="51ab",
        baseline=99.0,
        change=0.01,
        verdict="PASSED",
        reason="+1.0 %",
    )
    validate(Record, judged, "measurements.jsonl:1")


@pytest.mark.parametrize("entry", [None, replace(entry_of([99.0, 101.0]), noise=calibrated_of())], ids=["none", "calibrated"])
def test_check_passes_its_schema(entry: Entry | None) -> None:
    """A check with or without a baseline passes its schema, and is read again."""
    measured = measurement_of([100.0, 101.0])
    check = Judgement(Verdict.NO_BASELINE, "none is stored", terms=ComparisonPolicy(), runs=2, entry=entry)
    data = json.loads(json.dumps(record(measured, checks=[check.to_json()])))
    validate(Record, data, "measurements.jsonl:1")
    assert Judgement.from_json(data["checks"][0]) == check


def test_session_folder_passes_its_schemas(tmp_path: Path) -> None:
    """The files of a running and an ended session pass their schemas, with and without verdicts."""
    folder = SessionFolder.create(tmp_path, cluster="local", command=["pytest"], versions={"python": "3.11.2"})
    validate(SessionInfo, folder.session.to_json(), "session.json")
    judged = folder.add("test_x.py::test_y", measurement_of([100.0, 101.0]))
    folder.add("test_x.py::test_z", measurement_of([50.0], accuracies=[0.9], gpus=1, injected_slowdowns={"worker:0": 0.1}))
    question: dict[str, Any] = {"terms": ComparisonPolicy(threshold=0.5), "runs": 2}
    folder.add_judgement(judged.id, Judgement(Verdict.PASSED, "+1.0 %", **question, baseline_rate=99.0, change=0.01))
    of_two: dict[str, Any] = {"kind": "efficiency", "value": 0.9, "other": judged.id, "other_runs": 2}
    folder.add_judgement(judged.id, Judgement(Verdict.PASSED, "90 %", **question, **of_two))
    folder.finish(exit_code=0, wall_s=1.5)
    validate(SessionInfo, folder.session.to_json(), "session.json")
    lines = (folder.path / "measurements.jsonl").read_text().splitlines()
    stored = [load(line, "measurements.jsonl") for line in lines]
    for line in stored:
        validate(Record, line, "measurements.jsonl")
    assert [line["verdict"] for line in stored] == ["PASSED", None]


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"verdicts": "PASSED"}, "unknown key 'verdicts'. Did you mean 'verdict'?"),
    "unknown verdict": ({"verdict": "FINE"}, 'verdict: must be one of "REGRESSED"'),
    "no runs": ({"runs": []}, "runs: [] breaks minItems 1"),
    "half an efficiency": ({"efficiency": 0.9}, "anchor: must be of type string, not null"),
}


@pytest.mark.parametrize("changes, words", BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_invalid_measurement_is_refused(changes: dict[str, Any], words: str) -> None:
    """An invalid line of measurements.jsonl is refused with its number."""
    with pytest.raises(BaselineFileError) as caught:
        validate(Record, record(measurement_of([100.0]), **changes), "measurements.jsonl:7")
    assert str(caught.value).startswith("measurements.jsonl:7: ")
    assert words in str(caught.value)


def test_schemas_have_every_verdict() -> None:
    """Every verdict passes the schemas of a measurement and of a session."""
    for verdict in Verdict:
        validate(Record, record(measurement_of([100.0]), verdict=str(verdict), reason="so"), "measurements.jsonl:1")
    validate(SessionInfo, SESSION | {"verdicts": dict.fromkeys(map(str, Verdict), 1)}, "session.json")


SESSION = {
    "schema": 1,
    "id": "20260131T021503Z-9f3c1a",
    "cluster": "local",
    "started": "2026-01-31T02:15:03+00:00",
    "wall_s": 12.5,
    "command": ["pytest", "perf_tests"],
    "versions": {"python": "3.11.2"},
    "costs": [],
    "verdicts": {"PASSED": 3},
    "exit_code": 0,
}


COST = {
    "backend": "ec2",
    "run": "20260131T021503Z-9f3c1a-1",
    "instances": [{"id": "i-0123456789abcdef0", "seconds": 1512.0}],
    "seconds": 1512.0,
    "usd": 0.42,
    "usd_per_hour": 1.0,
    "price_source": "clusters.toml",
    "price_date": "2026-11-21",
    "placement": {"zone": "us-east-2a", "spot": False, "efa_interfaces": 0, "baseline_gbps": 2.5, "placement": None},
}


@pytest.mark.parametrize(
    "changes",
    [{}, {"wall_s": None, "exit_code": None, "verdicts": {}}, {"costs": [COST]}],
    ids=["ended", "running", "paid"],
)
def test_session_passes_its_schema(changes: dict[str, Any]) -> None:
    """A session.json passes its schema during and after the session, and with costs."""
    validate(SessionInfo, SESSION | changes, "session.json")


def test_unknown_verdict_in_a_session_is_refused() -> None:
    """A count of an unknown verdict is refused."""
    with pytest.raises(
        BaselineFileError, match=r'^session\.json: verdicts: must be one of "REGRESSED", .*"PASSED", not "PASED"'
    ):
        validate(SessionInfo, SESSION | {"verdicts": {"PASED": 1}}, "session.json")


def test_import_of_baselines_does_not_import_jsonschema() -> None:
    """The import of the modules of baselines does not import jsonschema or filelock."""
    code = (
        "import sys\n"
        "from pytest_dtfperf.baselines import accept, comparability, compare, files, references, store, verdict\n"
        "print(sorted({'jsonschema', 'referencing', 'filelock'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


GRAMMAR = """
print("the grammar is built")

def is_valid_syntax(term, value):
    return term == "iri" and "://" in value
"""


def test_grammar_of_iris_is_built_on_first_use(tmp_path: Path) -> None:
    """A validation of our files does not build JupyterLab's grammar of IRIs; the first check of an IRI does."""
    (tmp_path / f"{IRI_GRAMMAR}.py").write_text(GRAMMAR)
    code = (
        "from pytest_dtfperf.baselines.files import validate\n"
        "try:\n    validate('baseline', {}, 'x')\nexcept Exception as error:\n    print(error)\n"
        "from jsonschema import FormatChecker\n"
        "print([FormatChecker().conforms(word, 'iri') for word in ('http://\u00e4.example/', 'no iri')])\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    first, *then = done.stdout.splitlines()
    assert first.startswith("x: ")
    assert then == ["the grammar is built", "[True, False]"]
