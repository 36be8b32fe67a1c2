"""all_reduce_spec: valid texts, their meaning, and the errors of invalid ones."""

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.all_reduce import Range, parse
from pytest_dtfperf.spec.tables import ALGORITHMS

MEANINGS = {
    "xring": [Range("xring")],
    "xring#2": [Range("xring", 2)],
    "pscpu/pscpu#2": [Range("pscpu/pscpu", 2)],
    "nccl/rechd": [Range("nccl/rechd")],
    "pscpu:2k:pscpu#2:64K:xring": [Range("pscpu", 1, 2048), Range("pscpu", 2, 65536), Range("xring")],
    "psgpu#4:1M:xring": [Range("psgpu", 4, 1 << 20), Range("xring")],
    "pscpu:1G:xring:2T:psgpu": [Range("pscpu", 1, 1 << 30), Range("xring", 1, 2 << 40), Range("psgpu")],
    "pscpu:7:xring": [Range("pscpu", 1, 7), Range("xring")],
}

# What is wrong, with the caret where it is, and what is answered.
MISTAKES = {
    "": ("^", "expected one of nccl, nccl/xring"),
    "xrin": ("^", "unknown algorithm 'xrin'. Did you mean 'xring'? Known: collective, nccl"),
    "xring/pscpu": ("^", "unknown algorithm 'xring/pscpu'"),
    "pscpu#2/pscpu": ("       ^", "expected the end, '#' and a number of shards, or ':'"),
    "xring#": ("      ^", "expected a number of shards of at least 1"),
    "xring#0": ("      ^", "expected a number of shards of at least 1"),
    "xring#two": ("      ^", "expected a number of shards of at least 1"),
    "pscpu:": ("      ^", "expected the most elements that a tensor may have"),
    "pscpu:xring": ("      ^", "expected the most elements that a tensor may have"),
    "pscpu:-1:xring": ("      ^", "expected the most elements that a tensor may have"),
    "pscpu:32q:xring": ("        ^", "expected ':' and the algorithm for all larger tensors"),
    "pscpu:32k": ("         ^", "expected ':' and the algorithm for all larger tensors"),
    "pscpu:32k:": ("          ^", "expected one of nccl, nccl/xring"),
    "pscpu:0:xring": ("      ^", "expected at least 1: no tensor would be left for this"),
    "pscpu:64k:psgpu:64k:xring": ("                ^", "expected at least 65537: no tensor would be left for this"),
    "pscpu:64k:xring#2 ": ("                 ^", "expected the end"),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_specification_is_read(text: str) -> None:
    """Ranges, shards and sizes with their suffixes are read as tf_cnn_benchmarks reads them."""
    assert list(parse(text)) == MEANINGS[text]


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_shown_with_a_caret(text: str) -> None:
    """The error repeats the text, with a caret under the first wrong character and the expected text behind it."""
    caret, why = MISTAKES[text]
    with pytest.raises(SpecError) as refused:
        parse(text)
    headline, shown, below = str(refused.value).splitlines()
    assert (headline, shown) == ("all_reduce_spec cannot be read:", f"    {text}")
    assert below.startswith(f"    {caret} {why}")


def of_mode(mode: str, all_reduce_spec: str, **more: object) -> Spec:
    return Spec(model="trivial", batch_size=8, gpus=2, variable_update=mode, all_reduce_spec=all_reduce_spec, **more)  # type: ignore[arg-type]  # whatever a test says of a spec


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_replicated_adds_by_all_algorithms(algorithm: str) -> None:
    """The mode replicated accepts all algorithms, except those of several processes."""
    assert of_mode("replicated", algorithm).all_reduce_spec == algorithm


@pytest.mark.parametrize(
    "mode, all_reduce_spec, why",
    [
        ("collective_all_reduce", "xring", "cannot add by xring. Allowed: collective."),
        ("distributed_all_reduce", "collective", "cannot add by collective. Allowed: nccl, nccl/xring"),
        ("distributed_all_reduce", "pscpu:1k:collective", "cannot add by collective"),
        ("replicated", "pscpu:1k:xring", "adds tensors of all sizes alike: name one algorithm, pscpu or xring"),
        ("collective_all_reduce", "collective:1k:collective#2", "adds tensors of all sizes alike"),
        ("mirrored", "pscpu#2", "variable_update=mirrored knows no shards but of nccl: set pscpu"),
        ("multi_worker_mirrored", "xring#2", "variable_update=multi_worker_mirrored knows no shards: set xring"),
        ("independent", "xring", "means nothing to variable_update=independent"),
        ("replicated", "xrong", "Did you mean 'xring'?"),
    ],
)
def test_mode_refuses_unsupported_algorithms(mode: str, all_reduce_spec: str, why: str) -> None:
    """A mode refuses an unsupported algorithm before anything starts, with the supported ones."""
    with pytest.raises(SpecError) as refused:
        of_mode(mode, all_reduce_spec)
    assert why in str(refused.value)


def test_mirrored_accepts_packs_of_nccl() -> None:
    """`nccl#4` of `mirrored` are so many packs; one shard is none."""
    assert of_mode("mirrored", "nccl#4").all_reduce_spec == "nccl#4"
    assert of_mode("mirrored", "pscpu#1").all_reduce_spec == "pscpu#1"


@pytest.mark.parametrize("other", [{"hierarchical_copy": True}, {"local_parameter_device": "gpu"}])
def test_only_one_option_sets_how_gradients_are_added(other: dict[str, object]) -> None:
    """An algorithm and another way to add are refused together: one of them would be ignored."""
    with pytest.raises(SpecError, match="both define how gradients are added"):
        of_mode("replicated", "xring", **other)
