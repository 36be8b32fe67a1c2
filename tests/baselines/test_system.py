from typing import Any

import pytest

from pytest_dtfperf.baselines.comparability import hardware_differences, software_changes, system_name
from pytest_dtfperf.datamodel.fingerprint import Hardware

P100 = {"name": "NVIDIA Tesla P100-PCIE-16GB", "memory_gib": 16}
K80 = {"name": "NVIDIA Tesla K80", "memory_gib": 12}


def make_hardware(*gpus: dict[str, Any], cpu: str | None = "AMD EPYC 9B45", cores: int = 2, memory: int = 64) -> dict[str, Any]:
    return {"cpu": cpu, "cores": cores, "memory_gib": memory, "gpus": list(gpus)}


NAMES: dict[str, tuple[dict[str, Any], str]] = {
    "cpu": (make_hardware(), "cpu-amd-epyc-9b45-2c"),
    "trademarks and clock": (
        make_hardware(cpu="Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz", cores=64),
        "cpu-intel-xeon-e5-2686-v4-64c",
    ),
    "processor": (make_hardware(cpu="AMD Ryzen 9 7950X 16-Core Processor", cores=32), "cpu-amd-ryzen-9-7950x-16-core-32c"),
    "eight GPUs": (make_hardware(*[P100] * 8), "8x-nvidia-tesla-p100-pcie-16gb"),
    "one GPU": (make_hardware(K80), "1x-nvidia-tesla-k80"),
    "two kinds": (make_hardware(K80, P100, K80), "2x-nvidia-tesla-k80-and-1x-nvidia-tesla-p100-pcie-16gb"),
    "unnamed cpu": (make_hardware(cpu=None, cores=4), "cpu-unknown-4c"),
    "nothing known": ({}, "cpu-unknown-0c"),
    "a path": (make_hardware(cpu="../../etc/passwd"), "cpu-etc-passwd-2c"),
}


@pytest.mark.parametrize("hardware, name", NAMES.values(), ids=NAMES)
def test_system_name_has_the_devices_of_a_host(hardware: dict[str, Any], name: str) -> None:
    """A system is named after the devices of one host, in characters of a file name."""
    assert system_name(Hardware.from_json(hardware)) == name


DIFFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "same": (make_hardware(P100), make_hardware(P100), []),
    "cpu": (make_hardware(), make_hardware(cpu="Intel Xeon"), ["cpu: AMD EPYC 9B45 before, Intel Xeon after"]),
    "kind of CPU": (
        make_hardware(cpu="AMD EPYC") | {"cpu_kind": "family 25, model 1"},
        make_hardware(cpu="AMD EPYC") | {"cpu_kind": "family 26, model 2"},
        ["kind of CPU: family 25, model 1 before, family 26, model 2 after"],
    ),
    "unknown kind of CPU": (
        make_hardware() | {"cpu_kind": "family 25, model 1"},
        make_hardware() | {"cpu_kind": None},
        [],
    ),
    "another CPU, so another kind": (
        make_hardware() | {"cpu_kind": "family 25, model 17"},
        make_hardware(cpu="Intel Xeon") | {"cpu_kind": "family 6, model 85"},
        ["cpu: AMD EPYC 9B45 before, Intel Xeon after"],
    ),
    "hosts of two kinds": (
        make_hardware() | {"cpu_kind": "family 25, model 1"},
        make_hardware() | {"cpu_kind": "family 25, model 1 | family 26, model 2"},
        ["kind of CPU: family 25, model 1 before, family 25, model 1 | family 26, model 2 after"],
    ),
    "interconnect": (
        make_hardware() | {"interconnect": "Ethernet 10 Gb/s"},
        make_hardware() | {"interconnect": "Ethernet 1 Gb/s"},
        ["interconnect: Ethernet 10 Gb/s before, Ethernet 1 Gb/s after"],
    ),
    "cores": (make_hardware(cores=4), make_hardware(cores=2), ["cores: 4 before, 2 after"]),
    "another GPU": (
        make_hardware(P100),
        make_hardware(K80),
        ["gpus: 1 x NVIDIA Tesla P100-PCIE-16GB before, 1 x NVIDIA Tesla K80 after"],
    ),
    "more GPUs": (
        make_hardware(K80),
        make_hardware(K80, K80),
        ["gpus: 1 x NVIDIA Tesla K80 before, 2 x NVIDIA Tesla K80 after"],
    ),
    "no GPU any more": (make_hardware(K80), make_hardware(), ["gpus: 1 x NVIDIA Tesla K80 before, none after"]),
    "memory within 10 %": (make_hardware(memory=64), make_hardware(memory=58), []),
    "memory beyond 10 %": (make_hardware(memory=64), make_hardware(memory=57), ["memory: 64 GiB before, 57 GiB after"]),
    "memory that was rounded otherwise": (make_hardware(memory=4), make_hardware(memory=3), []),
    "half of a small memory": (make_hardware(memory=4), make_hardware(memory=2), ["memory: 4 GiB before, 2 GiB after"]),
    "memory of the GPU": (
        make_hardware(P100),
        make_hardware(P100 | {"memory_gib": 12}),
        ["GPU memory: 16 GiB before, 12 GiB after"],
    ),
    "another zone of a cloud": (
        {**make_hardware(), "cloud": {"zone": "a", "baseline_gbps": 2.5, "placement": None}},
        {**make_hardware(), "cloud": {"zone": "b", "baseline_gbps": 2.5, "placement": None}},
        ["cloud: baseline_gbps=2.5, zone=a before, baseline_gbps=2.5, zone=b after"],
    ),
    "the same place in a cloud": (
        {**make_hardware(), "cloud": {"zone": "a"}},
        {**make_hardware(), "cloud": {"zone": "a", "efa": None}},
        [],
    ),
    "unknown now": (
        make_hardware(),
        {},
        ["cpu: AMD EPYC 9B45 before, unknown after", "cores: 2 before, unknown after", "memory: 64 GiB before, unknown after"],
    ),
}


@pytest.mark.parametrize("then, now, found", DIFFERENCES.values(), ids=DIFFERENCES)
def test_hardware_differences_have_both_values(then: dict[str, Any], now: dict[str, Any], found: list[str]) -> None:
    """Each required part that differs is shown with both values."""
    assert hardware_differences(Hardware.from_json(then), Hardware.from_json(now)) == found


def test_software_changes_are_listed() -> None:
    """Changed, added and removed software is listed, unchanged software is not."""
    then: dict[str, str | None] = {"python": "3.11.2", "tensorflow": "2.20.0", "driver": None, "kernel": "6.1"}
    now = {"python": "3.11.2", "tensorflow": "2.21.0", "driver": "550.54"}
    assert software_changes(then, now) == ["driver none -> 550.54", "kernel 6.1 -> none", "tensorflow 2.20.0 -> 2.21.0"]
