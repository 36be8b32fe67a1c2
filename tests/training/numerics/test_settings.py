"""Threads and GPU options as a task's session and environment have them. There is no GPU here: what is told is looked at."""

from typing import Any

CPU_ONLY = {"gpus": 0, "jit": 0, "allow_growth": False}


def test_gpu_options_are_told(beside: dict[str, Any]) -> None:
    """By default each GPU has two threads of its own and memory grows; shared threads are counted for all four GPUs."""
    usual, shared, together = beside["configs"][:3]
    assert usual["variables"] == {"TF_GPU_THREAD_MODE": "gpu_private", "TF_GPU_THREAD_COUNT": "2"}
    assert (usual["gpus"], usual["allow_growth"]) == (4, True)
    assert shared["variables"] == {"TF_GPU_THREAD_MODE": "gpu_shared", "TF_GPU_THREAD_COUNT": "12"}
    assert shared["allow_growth"] is False
    assert together["variables"] == {"TF_GPU_THREAD_MODE": "global"}


def test_threads_are_the_share_or_what_is_asked_for(beside: dict[str, Any]) -> None:
    """A task's threads are its share of the cores; what the spec says of them goes before."""
    usual, *_, asked, _ = beside["configs"]
    assert (usual["intra"], usual["inter"]) == (6, 6)
    assert (asked["intra"], asked["inter"]) == (3, 2)
    assert {name: asked[name] for name in CPU_ONLY} == CPU_ONLY
    assert asked["variables"] == {}


def test_between_hosts_one_core_has_two_threads(beside: dict[str, Any]) -> None:
    """What has been computed is sent meanwhile, by a second thread between operations; not on one host, nor where one is asked
    for.
    """
    between_hosts, on_one_host, asked = beside["configs"][4:7]
    assert (between_hosts["intra"], between_hosts["inter"]) == (1, 2)
    assert (on_one_host["intra"], on_one_host["inter"]) == (1, 1)
    assert (asked["intra"], asked["inter"]) == (1, 1)


def test_parameter_servers_have_no_gpu(beside: dict[str, Any]) -> None:
    """Beside workers with GPUs, a server has none, and is told nothing of any."""
    server = beside["configs"][-1]
    assert not [name for name in server["variables"] if "GPU" in name]
    assert server["gpus"] == 0
