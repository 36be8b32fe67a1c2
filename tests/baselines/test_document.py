"""docs/baselines.md describes the files correctly."""

import re
from pathlib import Path

from pytest_dtfperf.baselines import audit
from pytest_dtfperf.baselines.comparability import system_name
from pytest_dtfperf.baselines.files import canonical, content_of, load_schema
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.datamodel.fingerprint import Hardware

DOCUMENT = (Path(__file__).parents[2] / "docs" / "baselines.md").read_text()
SCHEMA = load_schema("baseline")

MADE = {"step_breakdown", "worker_timings", "probes"}  # of a run that was traced, of hosts that were probed: tens of lines each


def section(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """Of the rows of all tables."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_the_example_is_a_file_as_it_is_written() -> None:
    """The example is valid, canonical, and has the file name of its hardware."""
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    (name,) = re.findall(r"`baselines/(.*?)\.json`, with one baseline", DOCUMENT)
    data = content_of(example, Path(f"{name}.json"))
    assert canonical(data) == example
    ((entry,),) = data["entries"].values()
    assert system_name(Hardware.from_json(entry["fingerprint"]["hardware"])) == name
    assert set(entry) | MADE == set(SCHEMA["$defs"]["entry"]["properties"]), "with everything that an entry may have"


def test_every_key_is_explained() -> None:
    """The tables have the keys of a file and of an entry, and no other."""
    keys = {key for cell in first_cells(section("A file")) for key in re.findall(r"`(\w+)`", cell)}
    assert keys == {*SCHEMA["properties"], *SCHEMA["$defs"]["entry"]["properties"]}


def test_the_table_of_thresholds_is_the_files() -> None:
    """The thresholds of the published systems are those that are shipped."""
    store = BaselineStore(Path("there is no such folder"))
    header, *rows = (line for line in section("Thresholds").splitlines() if re.match(r"\| (System|`)", line))
    sizes = [int(cell) for cell in header.split("|")[2:-1]]
    assert [row.split("|")[1].strip(" `") for row in rows] == ["piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"]
    for row in rows:
        system, *shown = (cell.strip(" `") for cell in row.strip("|").split("|"))
        assert [float(cell) for cell in shown] == [store.least_efficiency(system, "inception3", gpus) for gpus in sizes]


def test_every_finding_is_explained() -> None:
    """The table of findings has those that the audit makes."""
    assert {*first_cells(section("The audit"))} - {"Finding", "---"} == {audit.MISSING, *audit.CHECKS}
