"""Precedence of settings: the test, then the command line, then the cluster, then the model."""

import re
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.session.allocation_manager import ClusterInfo
from pytest_dtfperf.session.resolve import (
    RepeatPlan,
    choose_margin,
    choose_min_efficiency,
    merge_cluster_settings,
    plan,
    resolve,
)
from pytest_dtfperf.session.settings import Settings


@pytest.mark.parametrize(
    "wanted, options, cluster_settings, expected",
    [
        ({}, Settings(), {}, 64),
        ({}, Settings(), {"batch_size": 4}, 4),
        ({}, Settings(batch_size=32), {"batch_size": 4}, 32),
        ({"batch_size": 16}, Settings(batch_size=32), {"batch_size": 4}, 16),
    ],
    ids=["the model", "the cluster", "the command line", "the test"],
)
def test_precedence_of_settings(
    wanted: dict[str, Any], options: Settings, cluster_settings: dict[str, Any], expected: int
) -> None:
    """The batch size is the model's, unless the cluster, the command line or the test sets it, the last having precedence."""
    assert resolve({"model": "inception3", **wanted}, options, cluster_settings, "cpu").batch_size == expected


def test_list_of_the_cluster_file_is_used() -> None:
    """A list of the cluster file is used as the tuple of a field."""
    assert resolve({"model": "trivial"}, Settings(), {"environment": ["NCCL_ALGO=Ring"]}, "cpu").environment == (
        "NCCL_ALGO=Ring",
    )


def test_options_restore_the_protocol_of_the_report() -> None:
    """Four options restore the 2017 report's protocol on a cluster with smaller settings."""
    options = Settings(repeats=5, warmup_steps=10, steps=100, batch_size=64)
    cluster_settings = {"repeats": 3, "warmup_steps": 1, "steps": 5, "batch_size": 4}
    spec = resolve({"model": "inception3"}, options, cluster_settings, "cpu")
    assert (spec.warmup_steps, spec.steps, spec.batch_size) == (10, 100, 64)
    assert plan(options, cluster_settings).repeats == 5


def test_table_of_a_model_has_precedence() -> None:
    """Settings of clusters.toml for one model have precedence over those for all."""
    assert merge_cluster_settings({"steps": 1, "margin": 0.2}, {"mnist": {"steps": 2}}, "mnist") == {"steps": 2, "margin": 0.2}


@pytest.mark.parametrize("device, data_format", [("cpu", "NHWC"), ("gpu", "NCHW")])
def test_layout_depends_on_the_device(device: str, data_format: str) -> None:
    """The default layout of images depends on the device, unless it is set."""
    assert resolve({"model": "mnist"}, Settings(), {}, device).data_format == data_format
    assert resolve({"model": "mnist", "data_format": "NHWC"}, Settings(), {}, device).data_format == "NHWC"


@pytest.mark.parametrize("mode, num_ps", [("parameter_server", 1), ("replicated", 0)])
def test_number_of_servers_depends_on_the_mode(mode: str, num_ps: int) -> None:
    """The default is one parameter server for a mode that needs one, and none for others."""
    assert resolve({"model": "trivial", "variable_update": mode}, Settings(), {}, "cpu").num_ps == num_ps


@pytest.mark.parametrize(
    "wanted, cluster_settings, expected",
    [
        ({}, {}, "split"),
        ({"variable_update": "distributed_replicated"}, {}, "split"),
        ({"variable_update": "parameter_server_v2"}, {}, "greedy"),
        ({"variable_update": "replicated"}, {}, "greedy"),
        ({}, {"variable_placement": "round_robin"}, "round_robin"),
        ({"variable_placement": "greedy"}, {"variable_placement": "round_robin"}, "greedy"),
    ],
)
def test_variables_are_split_between_hosts(wanted: dict[str, Any], cluster_settings: dict[str, Any], expected: str) -> None:
    """Between hosts the default variable placement is split, and greedy on one host."""
    test = {"model": "vgg16", **wanted}
    assert resolve(test, Settings(), cluster_settings, "cpu", between_hosts=True).variable_placement == expected
    here = expected if cluster_settings else "greedy"
    assert resolve(test, Settings(), cluster_settings, "cpu").variable_placement == here


@pytest.mark.parametrize(
    "backend, keys, between",
    [("local", {}, False), ("ssh", {"hosts": ["a"]}, False), ("ssh", {"hosts": ["a", "b"]}, True), ("slurm", {}, True)],
)
def test_clusters_of_several_hosts_are_between_hosts(backend: str, keys: dict[str, Any], between: bool) -> None:
    """A cluster of several or of an unknown number of hosts is between hosts; one host is not."""
    config = ClusterConfig(name="x", backend=backend, backend_keys=keys)

    def refuse_launcher() -> Launcher:
        raise AssertionError("no host is asked")

    assert ClusterInfo(config, refuse_launcher).between_hosts is between


def test_synchronisation_depends_on_the_mode() -> None:
    """The default of cross_replica_sync depends on the mode, and an impossible value is refused."""
    assert not resolve({"model": "trivial", "variable_update": "parameter_server_v2"}, Settings(), {}, "cpu").cross_replica_sync
    assert resolve({"model": "trivial"}, Settings(), {}, "cpu").cross_replica_sync
    assert not resolve({"model": "trivial", "cross_replica_sync": False}, Settings(), {}, "cpu").cross_replica_sync
    with pytest.raises(SpecError, match="never synchronous"):
        resolve(
            {"model": "trivial", "variable_update": "parameter_server_v2", "cross_replica_sync": True}, Settings(), {}, "cpu"
        )


def test_data_folder_of_the_cluster_is_for_real_data() -> None:
    """The cluster's data_dir is used for real data only."""
    cluster_settings = {"data_dir": "/data"}
    assert resolve({"model": "mnist"}, Settings(), cluster_settings, "cpu").data_dir is None
    assert resolve({"model": "mnist", "data": "mnist"}, Settings(), cluster_settings, "cpu").data_dir == "/data"


@pytest.mark.parametrize(
    "wanted, words",
    [
        ({"model": "inceptoin3"}, "Did you mean 'inception3'"),
        ({"model": "mnist", "batchsize": 3}, "Did you mean 'batch_size'"),
        ({"model": "mnist", "gpus": 0}, "gpus must be a whole number of at least 1"),
        ({"model": "mnist", "variable_update": "replicated", "num_ps": 2}, "num_ps must be 0"),
    ],
)
def test_invalid_training_is_refused(wanted: dict[str, Any], words: str) -> None:
    """A training that cannot be is refused with what is allowed."""
    with pytest.raises(SpecError, match=words):
        resolve(wanted, Settings(), {}, "cpu")


@pytest.mark.parametrize(
    "options, cluster_settings, repeats, expected",
    [
        (Settings(), {}, None, RepeatPlan(repeats=10, min_repeats=None)),
        (Settings(), {"repeats": 3}, None, RepeatPlan(repeats=3)),
        (Settings(), {"repeats": 3, "min_repeats": 5}, None, RepeatPlan(repeats=3, min_repeats=3)),
        (Settings(repeats=4), {"repeats": 3, "min_repeats": 2}, None, RepeatPlan(repeats=4, min_repeats=2)),
        (Settings(repeats=5), {"repeats": 3}, 1, RepeatPlan(repeats=1, is_fixed=True)),
    ],
)
def test_precedence_of_repeats(
    options: Settings, cluster_settings: dict[str, Any], repeats: int | None, expected: RepeatPlan
) -> None:
    """The number of runs is the test's, then the command line's, then the cluster's."""
    assert plan(options, cluster_settings, repeats=repeats) == expected


@pytest.mark.parametrize("repeats", [0, -1, 2.5, "3", True])
def test_invalid_repeats_are_refused(repeats: Any) -> None:
    """An invalid number of runs is refused, of a test and of settings."""
    words = re.escape(f"repeats must be a whole number of at least 1, not {repeats!r}")
    with pytest.raises(SpecError, match=words):
        plan(Settings(), {}, repeats=repeats)
    with pytest.raises(SpecError, match=words):
        plan(Settings(repeats=repeats), {})


@pytest.mark.parametrize(
    "options, given, system, cluster_settings, expected",
    [
        (Settings(margin=0.01), 0.02, 0.03, {"margin": 0.04}, 0.01),
        (Settings(), 0.02, 0.03, {"margin": 0.04}, 0.02),
        (Settings(), None, 0.03, {"margin": 0.04}, 0.03),
        (Settings(), None, None, {"margin": 0.04}, 0.04),
        (Settings(), None, None, {}, 0.05),
    ],
    ids=["the command line", "the test", "the system's file", "the cluster", "the default"],
)
def test_precedence_of_margins(
    options: Settings, given: float | None, system: float | None, cluster_settings: dict[str, Any], expected: float
) -> None:
    """The margin is set by the first of its sources."""
    assert choose_margin(options, given, system, cluster_settings) == expected


@pytest.mark.parametrize(
    "options, given, system, expected",
    [
        (Settings(min_efficiency=0.9), 0.8, 0.75, 0.9),
        (Settings(), 0.8, 0.75, 0.8),
        (Settings(), None, 0.75, 0.75),
        (Settings(), None, None, 0.7),
    ],
    ids=["the command line", "the test", "the system's file", "the default"],
)
def test_precedence_of_min_efficiency(options: Settings, given: float | None, system: float | None, expected: float) -> None:
    """The least efficiency is set by the first of its sources."""
    assert choose_min_efficiency(options, given, system) == expected
