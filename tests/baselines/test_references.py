import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import published_folder
from pytest_dtfperf.baselines.references import (
    Reference,
    find,
    references,
    references_for,
)
from pytest_dtfperf.errors import BaselineFileError
from pytest_dtfperf.spec import Spec
from tests.baselines.published import published_efficiency, published_overhead

INCEPTION = Spec(model="inception3", batch_size=64, gpus=8, num_ps=2)
EC2, EC2_DISTRIBUTED = "google-ec2-p2.8xlarge", "google-ec2-p2.8xlarge-distributed"

# What was printed, or what it should have been: the notes of these rows say where a publication differs.
EFFICIENCIES = {
    ("piz-daint", 8, "synthetic"): 92.07,
    ("piz-daint", 64, "synthetic"): 80.46,
    ("piz-daint", 64, "imagenet"): 72.39,
    ("piz-daint", 128, "synthetic"): 52.11,
    ("piz-daint", 128, "imagenet"): 51.63,
    ("dgx1", 8, "synthetic"): 99.56,
    ("dgx1", 8, "imagenet"): 94.98,
    ("dgx1", 4, "synthetic"): 100.18,
    ("cscs-ec2-p2.xlarge", 8, "synthetic"): 93.46,
    ("cscs-ec2-p2.xlarge", 16, "synthetic"): 88.31,
    ("cscs-ec2-p2.xlarge", 32, "synthetic"): 84.46,
    ("cscs-ec2-p2.xlarge", 64, "synthetic"): 50.96,
    ("cscs-ec2-p2.xlarge", 128, "imagenet"): 28.09,
    ("cscs-ec2-p2.8xlarge", 8, "synthetic"): 94.41,
    ("cscs-ec2-p2.8xlarge", 16, "synthetic"): 91.77,
    ("cscs-ec2-p2.8xlarge", 32, "synthetic"): 88.35,
    ("cscs-ec2-p2.8xlarge", 64, "synthetic"): 88.55,
    ("cscs-ec2-p2.8xlarge", 128, "imagenet"): 73.67,
    (EC2, 8, "synthetic"): 93.34,  # the report printed 94.58
    (EC2_DISTRIBUTED, 64, "synthetic"): 93.80,  # the report printed 92.86
    ("gce-n1-standard-32-k80x8", 8, "synthetic"): 93.03,
}


@pytest.mark.parametrize("row, percent", EFFICIENCIES.items(), ids=["-".join(map(str, row)) for row in EFFICIENCIES])
def test_published_efficiency(row: tuple[str, int, str], percent: float) -> None:
    """The published efficiencies of InceptionV3 are those of the published rates."""
    system, gpus, data = row
    assert round(100 * published_efficiency(system, gpus, data=data), 2) == percent


OTHER_EFFICIENCIES: dict[str, tuple[str, int, dict[str, Any], float]] = {
    "AlexNet, replicated": ("dgx1", 8, {"model": "alexnet", "batch_size": 512}, 74.58),
    "VGG16, real data, batch 32": ("dgx1", 8, {"model": "vgg16", "batch_size": 32, "data": "imagenet"}, 59.90),
    "ResNet-50, distributed": (EC2_DISTRIBUTED, 64, {"model": "resnet50"}, 81.82),
    "the other tables, distributed": (EC2_DISTRIBUTED, 64, {"batch_size": 32}, 86.04),
    "tf_cnn_benchmarks in tensorpack's tables": (
        "8xp100", 8,
        {"model": "resnet50", "implementation": "tf_cnn_benchmarks", "variable_update": "parameter_server"},
        90.48,
    ),
}  # fmt: skip


@pytest.mark.parametrize("system, gpus, which, percent", OTHER_EFFICIENCIES.values(), ids=OTHER_EFFICIENCIES)
def test_published_efficiency_of_other_models(system: str, gpus: int, which: dict[str, Any], percent: float) -> None:
    """A row is divided by the 1-device row of its own table, batch and configuration."""
    assert round(100 * published_efficiency(system, gpus, **which), 2) == percent


OVERHEADS = {
    ("piz-daint", 1): 0.87,
    ("piz-daint", 8): 10.44,
    ("piz-daint", 128): 1.78,
    ("cscs-ec2-p2.xlarge", 32): 10.98,
    ("cscs-ec2-p2.xlarge", 128): -0.23,
    ("cscs-ec2-p2.8xlarge", 8): 17.65,
    ("cscs-ec2-p2.8xlarge", 16): 13.58,
    (EC2, 8): 0.87,
    ("dgx1", 8): 4.60,
}


@pytest.mark.parametrize("row, percent", OVERHEADS.items(), ids=["-".join(map(str, row)) for row in OVERHEADS])
def test_published_overhead(row: tuple[str, int], percent: float) -> None:
    """The I/O overheads are those of the published rates, and may be negative."""
    assert round(100 * published_overhead(*row), 2) == percent


def test_every_published_rate_is_stored() -> None:
    """All 339 published rates are stored under their system and source."""
    assert Counter((row.system, row.source.authors, row.source.measured) for row in references()) == {
        ("dgx1", "Google", "2017-05"): 71,
        ("gce-n1-standard-32-k80x8", "Google", "2017-05"): 56,
        (EC2, "Google", "2017-05"): 55,
        (EC2_DISTRIBUTED, "Google", "2017-05"): 25,
        ("ec2-m4.xlarge", "Google", "2017"): 16,
        ("ec2-r4.16xlarge", "Google", "2017"): 4,
        ("piz-daint", "E. Bugliarello (CSCS)", "2017-08"): 16,
        ("cscs-ec2-p2.xlarge", "E. Bugliarello (CSCS)", "2017-08"): 16,
        ("cscs-ec2-p2.8xlarge", "E. Bugliarello (CSCS)", "2017-08"): 16,
        ("8xp100", "tensorpack", "2017-09"): 32,
        ("8xp100", "tensorpack", "2018-03"): 1,
        ("8xv100", "tensorpack", "2018-03"): 3,
        ("ec2-p3.16xlarge", "tensorpack", "2019-05"): 5 + 18,  # the multi-GPU table and the other wrappers'
        ("ec2-p3.16xlarge", "tensorpack", "2020-07"): 5,
    }
    assert len(references()) == 339


def test_references_are_distinct() -> None:
    """No two published rates have the same configuration."""
    counts = Counter(
        (
            row.system, row.source, row.table, row.model, row.batch_size, row.gpus, row.data, row.mode, row.precision, row.xla,
            row.variable_update, row.implementation, row.build,
        )
        for row in map(_hashable, references())
    )  # fmt: skip
    assert max(counts.values()) == 1


def _hashable(reference: Reference) -> Any:
    values = {name: getattr(reference, name) for name in Reference.__dataclass_fields__}
    return type("Row", (), values | {"source": reference.source.revision + reference.source.software})


def test_full_precision_is_kept() -> None:
    """A more precise or different rate of the report's notebook is stored beside the printed one."""
    kept = {row.images_per_sec: row.images_per_sec_notebook for row in references() if row.images_per_sec_notebook}
    assert len(kept) == 26
    assert kept[1077.59] == 1077.59125
    assert kept[56.93] == 56.94
    assert all(abs(printed - full) <= 0.0101 for printed, full in kept.items())


NOTES = {
    (EC2, 8, "synthetic"): r"94\.58 %.*GCE.*93\.34 %.*93\.03 %",
    (EC2_DISTRIBUTED, 64, "synthetic"): r"92\.86 %.*29\.7.*93\.80 %",
    ("cscs-ec2-p2.8xlarge", 8, "synthetic"): r"94\.44 %.*misprint.*94\.41 %",
    ("cscs-ec2-p2.8xlarge", 1, "imagenet"): r"Identical to the p2\.xlarge value",
    ("cscs-ec2-p2.xlarge", 8, "synthetic"): r"93\.45 %.*93\.457 %",
    ("cscs-ec2-p2.xlarge", 32, "synthetic"): r"84\.45 %.*84\.456 %",
    ("cscs-ec2-p2.xlarge", 2, "imagenet"): r"56\.93.*56\.94",
    ("cscs-ec2-p2.xlarge", 128, "imagenet"): r"negative, -0\.23 %",
}


@pytest.mark.parametrize("row, words", NOTES.items(), ids=["-".join(map(str, row)) for row in NOTES])
def test_wrong_published_numbers_have_notes(row: tuple[str, int, str], words: str) -> None:
    """A published number that is contradicted, wrongly derived or repeated has a note."""
    system, gpus, data = row
    assert re.search(words, " ".join(find(system, gpus, model="inception3", batch_size=64, data=data).notes))


def test_assumptions_and_wrong_names_are_noted() -> None:
    """Assumed configurations, single runs and a misnamed instance have notes."""
    other = find("dgx1", 8, model="inception3", batch_size=32, data="synthetic")
    assert "assumed" in " ".join(other.notes)
    tensorpack = [row.source for row in references() if row.system == "8xp100"]
    assert "single runs" in (tensorpack[0].protocol or "")
    v100 = find("ec2-p3.16xlarge", 8, model="resnet50", variable_update="horovod", table="Performance @ May 2019")
    assert "The README says AWS p2.16xlarge" in " ".join(v100.source.notes)


def test_no_published_efficiency_is_stored() -> None:
    """No stored reference has a field for an efficiency or an overhead."""
    for path in published_folder().glob("*.json"):
        published = json.dumps(json.loads(path.read_text(encoding="utf-8"))["references"])
        assert not re.search(r'"[a-z_]*(efficiency|overhead)[a-z_]*":', published), path


def test_references_for_a_spec_have_its_model() -> None:
    """The references for a spec are trainings of its model, never inference."""
    found = references_for(INCEPTION)
    assert {row.model for row in found} == {"inception3"}
    assert {row.mode for row in found} == {"training"}
    assert {"piz-daint", "dgx1", "cscs-ec2-p2.8xlarge", EC2, "ec2-r4.16xlarge"} <= {row.system for row in found}
    assert references_for(Spec(model="trivial", batch_size=32)) == []


def test_reference_cites_its_source() -> None:
    """A published rate has its authors, date, table, machine and configuration."""
    row = find("piz-daint", 8, model="inception3", data="synthetic")
    assert row.citation == "E. Bugliarello (CSCS) 2017-08, Table 1"
    assert str(row.source).startswith("E. Bugliarello (CSCS): Distributed TensorFlow: A performance evaluation (e-bug/")
    assert (row.machine.gpu, row.machine.interconnect) == ("NVIDIA Tesla P100-PCIE-16GB", "Cray Aries, Dragonfly")
    assert (row.num_ps, row.variable_update, row.one_device) == (2, "parameter_server", 138.23)
    assert "force_gpu_compatible" in " ".join(row.source.notes)


def test_row_without_an_anchor_has_no_efficiency() -> None:
    """A row without a published 1-device row of its own table has no efficiency."""
    row = find("ec2-p3.16xlarge", 8, model="resnet50", variable_update="horovod", table="Performance @ May 2019")
    assert row.efficiency is None
    with pytest.raises(BaselineFileError, match="no 1-device row"):
        published_efficiency("8xv100", 8, model="resnet50", precision="fp32")


ASKED_WRONG: dict[str, tuple[tuple[str, int], dict[str, Any], str]] = {
    "system": (("piz-dant", 8), {}, "unknown published system 'piz-dant'. Did you mean 'piz-daint'?"),
    "size": (("piz-daint", 7), {"data": "synthetic"}, "0 published numbers of piz-daint have gpus=7, data=synthetic"),
    "ambiguous": (("piz-daint", 8), {}, "2 published numbers of piz-daint have gpus=8; exactly one was expected"),
}


@pytest.mark.parametrize("row, wanted, words", ASKED_WRONG.values(), ids=ASKED_WRONG)
def test_find_needs_exactly_one_match(row: tuple[str, int], wanted: dict[str, Any], words: str) -> None:
    """A search with no match or several matches is refused with the reason."""
    with pytest.raises(BaselineFileError, match=re.escape(words)):
        find(*row, **wanted)


def test_published_files_have_no_measured_baseline() -> None:
    """The shipped files have no measured baselines."""
    published = {row.system for row in references()}
    assert len(published) == 12
    shipped = {path.stem: path.read_text(encoding="utf-8") for path in published_folder().glob("*.json")}
    assert published <= shipped.keys()
    assert [name for name, text in shipped.items() if '"entries"' in text] == []


def test_references_are_read_from_a_given_folder(tmp_path: Path) -> None:
    """References of a user's own folder are read."""
    (tmp_path / "piz-daint.json").write_bytes((published_folder() / "piz-daint.json").read_bytes())
    assert {row.system for row in references_for(INCEPTION, tmp_path)} == {"piz-daint"}
