"""The state of a host's GPUs, by nvidia-smi and by NVIDIA's library."""

import os
import select
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.node.gpu_state import LIBRARY_EVERY_S, SMI_EVERY_S, GpuWatch, choose_reader, name_reasons, parse_readings
from tests.node.handheld import HandheldAgent

ROWS = """0, GPU-aaaa, 1328, 1328, 715, 715, 0x0000000000000000, 0, 54, 178.31, 97
1, GPU-bbbb, 607, 1328, 715, 715, 0x0000000000000048, 2, 91, 96.02, 100
2, GPU-cccc, 139, 1328, 405, 715, 0x0000000000000001, [N/A], 33, [Not Supported], [Unknown Error]
"""
PROCESSES = """GPU-bbbb, 4321, /usr/bin/python3, with commas, 1530
GPU-bbbb, 99, [Not Found], [N/A]
"""
SMI = f"""#!/bin/sh
case "$1" in
--query-gpu=*) cat <<'END'
{ROWS}END
;;
*) cat <<'END'
{PROCESSES}END
esac
"""

LIBRARY = '''
"""As much of NVIDIA's library as is asked for: one GPU that knows little."""

from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU = 1, 0, 0


class NVMLError(Exception):
    pass


def nvmlInit():
    INIT


def nvmlDeviceGetHandleByIndex(index):
    return f"gpu {index}"


def _unknown(*_):
    raise NVMLError("Not Supported")


nvmlDeviceGetTotalEccErrors = nvmlDeviceGetMaxClockInfo = _unknown
nvmlDeviceGetUUID = lambda gpu: b"GPU-aaaa"
nvmlDeviceGetClockInfo = lambda gpu, kind: {1: 1328, 2: 715}[kind]
nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x20
nvmlDeviceGetTemperature = lambda gpu, kind: 88
nvmlDeviceGetPowerUsage = lambda gpu: 178310
nvmlDeviceGetUtilizationRates = lambda gpu: SimpleNamespace(gpu=97)
nvmlDeviceGetComputeRunningProcesses = lambda gpu: [SimpleNamespace(pid=7, usedGpuMemory=None)]
nvmlSystemGetProcessName = lambda pid: b"/usr/bin/python3"
'''


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an nvidia-smi that knows three GPUs, and a Python without NVIDIA's library."""
    path = tmp_path / "nvidia-smi"
    path.write_text(SMI)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return path


def library(folder: Path, monkeypatch: pytest.MonkeyPatch, init: str = "pass") -> None:
    """A library of that name where Python looks for it."""
    (folder / "pynvml.py").write_text(LIBRARY.replace("INIT", init))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)


def test_readings_of_nvidia_smi() -> None:
    """Each GPU's numbers and reasons are read; text without a number is None; a name with commas is one name."""
    first, second, third = parse_readings(ROWS, PROCESSES, ["0", "1", "2"])
    assert first == {
        "index": "0", "uuid": "GPU-aaaa", "sm_mhz": 1328, "sm_max_mhz": 1328, "memory_mhz": 715, "memory_max_mhz": 715,
        "reasons": [], "ecc_uncorrected": 0, "temperature_c": 54, "power_w": 178.31, "utilisation": 97, "processes": [],
    }  # fmt: skip
    assert second["reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert second["processes"] == [
        {"pid": 4321, "name": "/usr/bin/python3,with commas", "memory_mib": 1530},
        {"pid": 99, "name": "[Not Found]", "memory_mib": None},
    ]
    assert (third["ecc_uncorrected"], third["power_w"], third["utilisation"]) == (None, None, None)


@pytest.mark.parametrize("cell", ["nan", "-inf", "1e400", "4" * 30])
def test_number_that_cannot_be(cell: str) -> None:
    """A number that no sensor has is not known: the controller would reject its host."""
    row = ROWS.splitlines()[0]
    assert "178.31" in row
    (reading,) = parse_readings(row.replace("178.31", cell), "", ["0"])
    assert reading["power_w"] is None


def test_only_our_gpus_are_read() -> None:
    """GPUs that are not allocated are left out."""
    assert [reading["index"] for reading in parse_readings(ROWS, PROCESSES, ["1"])] == ["1"]


@pytest.mark.parametrize("rows", ["", "No devices were found\n", 'Field "clocks.sm" is not a valid field to query.\n'])
def test_answer_that_is_none(rows: str) -> None:
    """Text instead of rows gives no GPU."""
    assert parse_readings(rows, "", ["0"]) == []


@pytest.mark.parametrize("mask, names", [(0, []), (0x5, ["gpu_idle", "sw_power_cap"]), (0x400, ["0x400"])])
def test_reasons(mask: int, names: list[str]) -> None:
    """Each bit that is set has its name, and one that came later has its number."""
    assert name_reasons(mask) == names


def test_library_is_read_first(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's library reports the same fields as nvidia-smi; a refused value is None."""
    library(tmp_path, monkeypatch)
    read_gpus, every_s = choose_reader(["0"])
    (reading,) = read_gpus()
    assert every_s == LIBRARY_EVERY_S
    assert reading == {
        "index": "0", "uuid": "GPU-aaaa", "sm_mhz": 1328, "sm_max_mhz": None, "memory_mhz": 715, "memory_max_mhz": None,
        "reasons": ["sw_thermal_slowdown"], "ecc_uncorrected": None, "temperature_c": 88, "power_w": 178.31, "utilisation": 97,
        "processes": [{"pid": 7, "name": "/usr/bin/python3", "memory_mib": None}],
    }  # fmt: skip
    assert set(reading) == set(parse_readings(ROWS, PROCESSES, ["0"])[0])


def test_library_without_a_driver(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot start leaves the question to nvidia-smi."""
    library(tmp_path, monkeypatch, init='raise NVMLError("Driver Not Loaded")')
    read_gpus, every_s = choose_reader(["0", "1"])
    assert len(read_gpus()) == 2
    assert every_s == SMI_EVERY_S


@pytest.mark.parametrize("script", ["exit 9", "exec no-such-program"])
def test_nvidia_smi_that_fails(smi: Path, script: str) -> None:
    """A failing nvidia-smi gives no readings and no error."""
    smi.write_text(f"#!/bin/sh\n{script} 2>&-\n")
    read_gpus, _ = choose_reader(["0"])
    assert read_gpus() == []
    smi.unlink()
    assert read_gpus() == []


def test_watch(smi: Path) -> None:
    """A process of its own samples at once and then again; it is gone when its reader is gone."""
    watch = GpuWatch(["1"])
    seen: list[tuple[float, Any]] = []
    while len(seen) < 2:
        assert select.select([watch], [], [], 30)[0]
        heard = watch.read_samples()
        assert heard is not None
        seen += heard
    assert seen[0][0] < seen[1][0]
    assert [gpus[0]["sm_mhz"] for _, gpus in seen] == [607, 607]
    watch.close()
    assert os.waitstatus_to_exitcode(os.waitpid(watch.pid, 0)[1]) == 0


def test_agent_accounts_for_its_gpus(smi: Path) -> None:
    """An agent on a host with GPUs reports those that it was given at the end of a run, and has watched them during it."""
    listed = "0, Tesla P100, 16280, 535.1, GPU-aaaa\n1, Tesla P100, 16280, 535.1, GPU-bbbb"
    smi.write_text(SMI.replace("--query-gpu=*)", f"--query-gpu=index,name,*) echo '{listed}' ;;\n--query-gpu=*)"))
    with HandheldAgent(env={"CUDA_VISIBLE_DEVICES": "1", "PATH": os.environ["PATH"]}) as agent:
        agent.expect("hello")
        for run, steps in {"first": 1, "second": 30}.items():
            agent.start("worker:0", run=run, steps=steps, step_s=0.1)
            agent.expect("task", kind="ready")
            agent.notify("go", "worker:0", run=run)
            agent.expect("exit")
            agent.order("stop", run=run)
            state = agent.expect("state")["state"]
            agent.expect("stopped")
        (gpu,) = state["gpus"]
        assert gpu["index"] == "1"
        assert gpu["during"]["samples"] >= 1
        assert gpu["during"]["reasons"]["hw_thermal_slowdown"] == gpu["during"]["samples"]
        assert gpu["before"]["ecc_uncorrected"] == gpu["after"]["ecc_uncorrected"] == 2


def test_state_of_a_part_is_unknown(smi: Path) -> None:
    """nvidia-smi reports whole GPUs: of a part (MIG) its state is not known, and is no other's."""
    listed = "0, Tesla A100, 40960, 535.1, GPU-aaaa"
    below = "GPU 0: Tesla A100 (UUID: GPU-aaaa)\n  MIG 1g.5gb Device 0: (UUID: MIG-aaaa)"
    smi.write_text(
        SMI.replace("--query-gpu=*)", f"-L) echo '{below}' ;;\n--query-gpu=index,name,*) echo '{listed}' ;;\n--query-gpu=*)")
    )
    with HandheldAgent(env={"CUDA_VISIBLE_DEVICES": "MIG-aaaa", "PATH": os.environ["PATH"]}) as agent:
        assert agent.expect("hello")["gpus"] == ["MIG-aaaa"]
        agent.start("worker:0", run="one", steps=1, step_s=0.1)
        agent.expect("task", kind="ready")
        agent.notify("go", "worker:0", run="one")
        agent.expect("exit")
        agent.order("stop", run="one")
        (gpu,) = agent.expect("state")["state"]["gpus"]
        agent.expect("stopped")
    assert (gpu["index"], gpu["before"], gpu["after"], gpu["others"]) == ("MIG-aaaa", None, None, [])
    assert (gpu["during"]["samples"], gpu["during"]["sm_mhz"]) == (0, None)
