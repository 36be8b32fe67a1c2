"""Tests of the combinations with which a test runs."""

import re
from typing import Any

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.plugin.options import Options
from pytest_dtfperf.plugin.parametrise import Marker, explain_lack, identify, make_combinations
from pytest_dtfperf.session.allocation_manager import powers_of_two

ALL = ("gpus", "num_ps", "variable_update")
BOTH = Marker(variable_update=("parameter_server", "replicated"))

COMBINATIONS: dict[str, tuple[tuple[str, ...], Options, Marker, int, list[str]]] = {
    "all devices of the cluster, in powers of two": (("gpus",), Options(), Marker(), 6, ["gpus1", "gpus2", "gpus4", "gpus6"]),
    "only the names that are asked for": (("num_ps",), Options(), Marker(), 4, ["ps1"]),
    "--gpus decides": (("gpus",), Options(gpus=(8, 2)), Marker(gpus=(1,)), 4, ["gpus8", "gpus2"]),
    "the marker decides where no option does": (("gpus",), Options(), Marker(gpus=(3,)), 4, ["gpus3"]),
    "too few devices are left out": (("gpus",), Options(), Marker(min_gpus=2), 4, ["gpus2", "gpus4"]),
    "a mode without parameter servers has none": (
        ALL, Options(num_ps=(1, 2)), BOTH, 1,
        ["gpus1-ps1-parameter_server", "gpus1-ps2-parameter_server", "gpus1-ps0-replicated"],
    ),
    "--variable-update decides": (ALL, Options(variable_update=("replicated",)), Marker(), 1, ["gpus1-ps0-replicated"]),
    "so is what a sweep finds": (
        ("gpus", "num_ps"), Options(num_ps="sweep", gpus=(4,)), Marker(), 4, ["gpus4-pssweep"],
    ),
    "best is found out later": (("gpus", "num_ps"), Options(num_ps="best", gpus=(4,)), Marker(), 4, ["gpus4-psbest"]),
}  # fmt: skip


@pytest.mark.parametrize("case", COMBINATIONS)
def test_combinations_follow_options_markers_and_cluster(case: str) -> None:
    """Options override markers, and markers override the counts of the cluster."""
    asked, options, marker, devices, expected = COMBINATIONS[case]
    assert [identify(combination) for combination in make_combinations(asked, options, marker, devices)] == expected


@pytest.mark.parametrize("limit, expected", [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (128, (1, 2, 4, 8, 16, 32, 64, 128))])
def test_powers_of_two_include_the_limit(limit: int, expected: tuple[int, ...]) -> None:
    """Device counts double up to the limit, which is always among them."""
    assert powers_of_two(limit) == expected


@pytest.mark.parametrize(
    "combination, reason",
    [
        ({"gpus": 4}, None),
        ({"gpus": 8}, "daint has 4 devices, gpus=8 needs more"),
        (
            {"gpus": 2, "variable_update": "replicated"},
            "replicated keeps all devices in one process, and a host of daint has 1",
        ),
        (
            {"gpus": 2, "num_ps": 0, "variable_update": "parameter_server"},
            "parameter_server keeps all devices in one process, and a host of daint has 1",
        ),
        ({"gpus": 2, "num_ps": 1, "variable_update": "parameter_server"}, None),
        ({}, None),
    ],
)
def test_impossible_combination_has_its_reason(combination: dict[str, Any], reason: str | None) -> None:
    """A combination that the cluster cannot run has a reason with the numbers, and a possible one has none."""
    assert explain_lack(combination, "daint", devices=4, devices_per_host=1) == reason


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"margin": 5}, "margin must be a fraction of the rate, as 0.05 for 5 %, not 5"),
        ({"margin": "5%"}, "margin must be a fraction of the rate, as 0.05 for 5 %, not '5%'"),
        ({"efficiency": 90}, "efficiency must be a fraction, as 0.9 for 90 %, not 90"),
        ({"min_gpus": "2"}, "min_gpus must be a whole number of at least 1, not '2'"),
        ({"gpus": 2}, "gpus must be a list of whole numbers of at least 1, as [1, 2], not 2"),
        ({"gpus": [0]}, "gpus must be a list of whole numbers of at least 1, as [1, 2], not [0]"),
        ({"gpus": [True]}, "gpus must be a list of whole numbers of at least 1, as [1, 2], not [True]"),
        ({"num_ps": []}, "num_ps must be a list of whole numbers of at least 0, as [1, 2], not []"),
        ({"variable_update": "replicated"}, 'variable_update must be a list of variable updates, as ["replicated"], not'),
        ({"variable_update": [{}]}, 'variable_update must be a list of variable updates, as ["replicated"], not [{}]'),
        ({"variable_update": ["replicatd"]}, "unknown variable update 'replicatd'. Did you mean 'replicated'?"),
    ],
)
def test_marker_values_are_checked(arguments: dict[str, Any], words: str) -> None:
    """An invalid value of a marker is refused with the test's name and the allowed values."""
    with pytest.raises(UsageError, match=f"test_x: .*{re.escape(words)}"):
        Marker.from_arguments(arguments, "test_x")
