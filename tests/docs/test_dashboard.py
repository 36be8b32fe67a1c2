"""The dashboard for Grafana shows the metrics that nights write, and no others."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from pytest_dtfperf.nightly.night import NightMetrics
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.export_formats import GAUGES, PREFIX
from tests.docs.pages import REPOSITORY, source
from tests.records.samples import measurement, spec

DASHBOARD: Mapping[str, Any] = json.loads((REPOSITORY / "docs" / "grafana-dashboard.json").read_text())
PANELS = DASHBOARD["panels"]


@pytest.fixture
def exported_labels(tmp_path: Path) -> dict[str, set[str]]:
    """Return the labels of each metric of a night. Gauges that this session has no values for have those of the others."""
    folder = SessionFolder.create(tmp_path, cluster="daint", command=[], versions={})
    folder.add("t.py::test_a", measurement(spec(gpus=2), [10.0, 10.0]))
    folder.finish(exit_code=0, wall_s=1.0, verdicts={"PASSED": 1})
    families = text_string_to_metric_families(NightMetrics("daint", 0, 0, folder.path).format().decode())
    found = {sample.name: set(sample.labels) for family in families for sample in family.samples}
    return {**{f"{PREFIX}_{name}": found["dtfperf_runs"] for name in GAUGES}, **found}


def list_expressions() -> Iterator[str]:
    """Yield all queries of panels and variables."""
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (each["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query")


def list_unknown(ours: object, theirs: object, path: str = "") -> Iterator[str]:
    """Yield the paths of our values that are missing or different in another document."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from list_unknown(value, theirs.get(key), f"{path}/{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from list_unknown(*pair, f"{path}/{number}")
    elif ours != theirs:
        yield path


def test_fields_are_those_of_the_schema() -> None:
    """Grafana's own types, which are made of its schema, keep each field. The text of a query beside a variable has none."""
    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(dict(DASHBOARD))))
    unknown = [path for path in list_unknown(DASHBOARD, kept) if not re.fullmatch(r"/templating/list/\d+/definition", path)]
    assert unknown == []


def test_metrics_are_exported(exported_labels: Mapping[str, set[str]]) -> None:
    """Each query names metrics and labels that a night writes, and each of these metrics is shown."""
    for expression in list_expressions():
        for name, selector in re.findall(r"\b(dtfperf_\w+)(?:\{(.*?)\})?", expression):
            assert name in exported_labels, expression
            assert set(re.findall(r"(\w+)=~", selector)) <= exported_labels[name], expression
        for name, label in re.findall(r"label_values\((\w+), (\w+)\)", expression):
            assert label in exported_labels[name]
    shown = {name for each in list_expressions() for name in re.findall(r"\bdtfperf_\w+", each)}
    assert exported_labels.keys() - shown == set()


def test_legends_have_labels_of_their_metrics(exported_labels: Mapping[str, set[str]]) -> None:
    """Each `{{label}}` of a legend is a label of the metric."""
    for target in (target for panel in PANELS for target in panel["targets"]):
        (name,) = re.findall(r"\bdtfperf_\w+", target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= exported_labels[name]


def test_queries_use_the_variables() -> None:
    """Each variable of a query is declared, and each panel asks the chosen data source."""
    declared = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = {name for each in list_expressions() for name in re.findall(r"\$\{?(\w+)", each)}
    assert used | {"datasource"} == declared
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}


def test_panels_are_beside_each_other() -> None:
    """No panel has the id of another, covers another, or leaves the grid of 24 columns."""
    assert max(Counter(panel["id"] for panel in PANELS).values()) == 1
    positions = [panel["gridPos"] for panel in PANELS]
    assert all(each["x"] >= 0 and each["x"] + each["w"] <= 24 for each in positions)
    for one, other in combinations(positions, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_page_links_to_the_dashboard() -> None:
    """docs/nightly.md describes how to import it."""
    assert "(grafana-dashboard.json)" in source("docs/nightly.md")
