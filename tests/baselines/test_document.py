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


def get_section(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def list_first_cells(text: str) -> list[str]:
    """Return the first cell of each row of all tables."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_example_is_a_canonical_file() -> None:
    """The example is valid and canonical, has all keys of an entry, and has the file name of its hardware."""
    (example,) = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)
    (name,) = re.findall(r"`baselines/(.*?)\.json`, with one baseline", DOCUMENT)
    data = content_of(example, Path(f"{name}.json"))
    assert canonical(data) == example
    ((entry,),) = data["entries"].values()
    assert system_name(Hardware.from_json(entry["fingerprint"]["hardware"])) == name
    assert set(entry) | MADE == set(SCHEMA["$defs"]["entry"]["properties"]), "with everything that an entry may have"


def test_every_key_is_described() -> None:
    """The tables have the keys of a file and of an entry, and no other."""
    keys = {key for cell in list_first_cells(get_section("A file")) for key in re.findall(r"`(\w+)`", cell)}
    assert keys == {*SCHEMA["properties"], *SCHEMA["$defs"]["entry"]["properties"]}


def test_table_of_thresholds_is_that_of_the_files() -> None:
    """The table has the shipped thresholds of the published systems."""
    store = BaselineStore(Path("there is no such folder"))
    header, *rows = (line for line in get_section("Thresholds").splitlines() if re.match(r"\| (System|`)", line))
    sizes = [int(cell) for cell in header.split("|")[2:-1]]
    assert [row.split("|")[1].strip(" `") for row in rows] == ["piz-daint", "cscs-ec2-p2.xlarge", "cscs-ec2-p2.8xlarge"]
    for row in rows:
        system, *shown = (cell.strip(" `") for cell in row.strip("|").split("|"))
        assert [float(cell) for cell in shown] == [store.get_least_efficiency(system, "inception3", gpus) for gpus in sizes]


def test_every_finding_is_described() -> None:
    """The table of findings has the findings of the audit."""
    assert {*list_first_cells(get_section("The audit"))} - {"Finding", "---"} == {audit.MISSING, *audit.CHECKS}
