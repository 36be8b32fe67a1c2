"""Threads and GPU options in a task's session and environment. There is no GPU here: only settings are compared."""

from typing import Any

CPU_ONLY = {"gpus": 0, "jit": 0, "allow_growth": False}


def test_gpu_options_are_set(results: dict[str, Any]) -> None:
    """Each GPU has two threads and growing memory by default; shared threads are counted for all four GPUs."""
    usual, shared, together = results["configs"][:3]
    assert usual["variables"] == {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}
    assert (usual["gpus"], usual["allow_growth"]) == (4, True)
    assert shared["variables"] == {"TF_GPU_THREAD_MODE": "gpu_shared", "TF_GPU_THREAD_COUNT": "12"}
    assert shared["allow_growth"] is False
    assert together["variables"] == {"TF_GPU_THREAD_MODE": "global"}


def test_threads_are_the_share_of_cores_or_as_given(results: dict[str, Any]) -> None:
    """A task's threads are its share of the cores, unless the spec sets them."""
    usual, *_, asked, _ = results["configs"]
    assert (usual["intra"], usual["inter"]) == (6, 6)
    assert (asked["intra"], asked["inter"]) == (3, 2)
    assert {name: asked[name] for name in CPU_ONLY} == CPU_ONLY
    assert asked["variables"] == {}


def test_between_hosts_one_core_has_two_threads(results: dict[str, Any]) -> None:
    """A task with one core has two threads between operations if its peers are on other hosts, to send while it computes."""
    between_hosts, on_one_host, asked = results["configs"][4:7]
    assert (between_hosts["intra"], between_hosts["inter"]) == (1, 2)
    assert (on_one_host["intra"], on_one_host["inter"]) == (1, 1)
    assert (asked["intra"], asked["inter"]) == (1, 1)


def test_parameter_servers_have_no_gpu(results: dict[str, Any]) -> None:
    """A parameter server beside workers with GPUs has no GPU and no settings of GPUs."""
    server = results["configs"][-1]
    assert not [name for name in server["variables"] if "GPU" in name]
    assert server["gpus"] == 0
