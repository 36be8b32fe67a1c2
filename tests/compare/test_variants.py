"""Tests of variants from command lines and files, and of the messages on invalid ones."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.compare.variants import (
    Variant,
    is_variant,
    list_differences,
    load_variants,
    make_same,
    parse_variant,
)
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.session.stacks import check_variants
from pytest_dtfperf.spec import Spec

LOCAL = ClusterConfig(name="local")
SLURM = ClusterConfig(name="daint", backend="slurm", backend_keys={"setup": ["module load cray"]}, environment=["TMPDIR"])
SPEC = Spec(model="trivial", batch_size=8)


@pytest.mark.parametrize(
    ("text", "stack", "fields"),
    [
        ("old:", {}, {}),
        ("new: python=/venvs/tf221/bin/python", {"python": "/venvs/tf221/bin/python"}, {}),
        ("new: setup='module load a' setup='module load b'", {"setup": ["module load a", "module load b"]}, {}),
        ("""new: setup='["module load a", "module load b"]'""", {"setup": ["module load a", "module load b"]}, {}),
        ("new: setup=uv", {"setup": "uv"}, {}),
        ("new: environment=TF_ENABLE_ONEDNN_OPTS=0", {"environment": ["TF_ENABLE_ONEDNN_OPTS=0"]}, {}),
        ("new: num_intra_threads=2 wire_precision=bf16", {}, {"num_intra_threads": 2, "wire_precision": "bf16"}),
        ("new: container='apptainer exec a.sif'", {"container": "apptainer exec a.sif"}, {}),
        ("new: environment=uv", {"environment": ["uv"]}, {}),
    ],
)
def test_variant_has_name_stack_and_fields(text: str, stack: dict[str, Any], fields: dict[str, Any]) -> None:
    """A variant's keys are those of the cluster's stack and fields of the training."""
    found = parse_variant(text)
    assert (found.name, found.stack, found.fields) == (text.partition(":")[0], stack, fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("old:", True), ("tf-2.20: xla=true", True), ("my_models:small_cnn", False), ("mnist", False), ("gpus=2", False)],
)
def test_variant_is_recognised_by_its_colon(text: str, expected: bool) -> None:
    """A variant has a blank after its colon or ends there, and the model of a module does not."""
    assert is_variant(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("new: pyton=x", "variant new: unknown key 'pyton'. Did you mean 'python'?"),
        ("new: python", "variant new: 'python' must be KEY=VALUE"),
        ("new: python=a python=b", "variant new: python is given twice: 'a' and 'b'"),
        ("new: setup='module", 'variant new: "setup=\'module" cannot be read: No closing quotation'),
        ("new: gpus=2", "variant new: gpus cannot differ between variants: name it with the training"),
        ("new: model=vgg16", "variant new: model cannot differ between variants: name it with the training"),
        (
            "new: container=image",
            "variant new: container must be a command line of a program and at least one argument, not 'image'",
        ),
        ("new: environment=1X", "variant new: environment must be a list of variables"),
        ("new: packages='[]'", "variant new: packages must be a list of requirements, not []"),
        ("new: num_intra_threads=two", "variant new: num_intra_threads"),
        ("new", "'new' is no variant"),
    ],
)
def test_invalid_variant_is_one_line(text: str, message: str) -> None:
    """The message on an invalid variant is one line, which names the variant and its key."""
    with pytest.raises(UsageError) as caught:
        parse_variant(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_all_mistakes_of_a_variant_are_reported() -> None:
    """Each invalid key of a variant has a line of its own."""
    with pytest.raises(UsageError, match=r"(?s)variant new: unknown key 'pyton'.*\nvariant new: gpus cannot differ"):
        parse_variant("new: pyton=x gpus=2")


def test_variants_are_loaded_from_a_file(tmp_path: Path) -> None:
    """A TOML file has a table for each variant, the reference first."""
    path = tmp_path / "ab.toml"
    path.write_text('[old]\n[new]\nsetup = ["module load a"]\nnum_intra_threads = 2\n')
    assert load_variants(path) == [Variant("old"), Variant("new", {"setup": ["module load a"]}, {"num_intra_threads": 2})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("old = 1", "old must be a table with the settings of a variant, not 1"),
        ("[old]\ngpu = 1", "[old] unknown key 'gpu'"),
        ("['a b']", "['a b'] is no name of a variant"),
        ("[old", "is no TOML"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_invalid_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    """The message on an invalid file begins with its path."""
    path = tmp_path / "ab.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_variants(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_variant_changes_the_cluster() -> None:
    """Set-up lines and variables of a variant follow the cluster's, and its interpreter replaces the cluster's."""
    found = parse_variant("new: setup='module load tensorflow/2.21' environment=TF_X=1 python=python3.12").apply_to_cluster(
        SLURM
    )
    assert found.backend_keys["setup"] == ["module load cray", "module load tensorflow/2.21"]
    assert found.environment == ["TMPDIR", "TF_X=1"]
    assert found.python == "python3.12"


def test_variant_changes_the_spec() -> None:
    """A variant's fields replace the training's, and the message on impossible ones names the variant."""
    assert parse_variant("new: num_intra_threads=2").apply_to_spec(SPEC) == SPEC.replace(num_intra_threads=2)
    with pytest.raises(UsageError, match="variant new: "):
        parse_variant("new: variable_update=replicated num_ps=2").apply_to_spec(SPEC)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "a comparison needs two variants, and there is none"),
        (["old:"], "a comparison needs two variants, and there is only old"),
        (["old:", "old: xla=true"], "variant old is defined twice"),
        (["old:", "new:"], "variants old and new are equal: --same"),
        (["old: python=a", "b:", "new: python=a"], "variants old and new are equal"),
        (["old:", "new: setup='module load x'"], "variant new: setup: cluster local (local) has no set-up lines"),
    ],
)
def test_variants_that_cannot_be_compared_are_refused(texts: list[str], message: str) -> None:
    """Fewer than two variants, equal ones, and those that the cluster cannot have are refused."""
    with pytest.raises(UsageError) as caught:
        check_variants([parse_variant(text) for text in texts], LOCAL)
    assert str(caught.value).startswith(message)


def test_differences_have_both_values() -> None:
    """Each setting that differs is listed with both values, with the cluster's own if a variant sets none."""
    old, new = parse_variant("old: xla=true"), parse_variant("new: setup='module load x' python=p")
    assert list_differences(old, new, SLURM) == [
        "python: as usual -> p",
        'setup: ["module load cray"] -> ["module load cray", "module load x"]',
        "xla: true -> as usual",
    ]


def test_null_is_a_value_of_a_field() -> None:
    """A variant that sets a field to null differs from one without the field, because the training may set it."""
    old, new = parse_variant("old:"), parse_variant("new: num_intra_threads=null")
    check_variants([old, new], LOCAL)
    assert list_differences(old, new, LOCAL) == ["num_intra_threads: as usual -> null"]


def test_copy_of_a_variant_has_another_name() -> None:
    """The copy of a variant differs only in its name."""
    old = parse_variant("old: xla=true")
    assert make_same(old) == [old, Variant("old-again", old.stack, old.fields)]
