"""A stand-in for nvidia-smi that prints what the real one prints, of GPUs and parts of GPUs (MIG) that a test describes."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

A100 = "NVIDIA A100-SXM4-40GB"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.129\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
    "installed and running.\n\n"
)
LOST = "Unable to determine the device handle for GPU0000:65:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
UNKNOWN = "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error\n"

_PROGRAM = """#!{python} -S
import json, sys
gpus, failure, warning, old = json.loads({state!r})
if failure:
    sys.stdout.write(failure[1])
    sys.exit(failure[0])
if warning:
    print(warning)
arguments = sys.argv[1:]
if arguments == ["-L"]:
    for number, gpu in enumerate(gpus):
        print(f"GPU {{number}}: {{gpu['name']}} (UUID: {{gpu['uuid']}})")
        for at, (profile, uuid) in enumerate(gpu["parts"]):
            print(f"  MIG {{profile:<10}}  Device {{at:>2}}: (UUID: {{uuid}})")
elif arguments[0].startswith("--query-gpu="):
    for field in arguments[0].removeprefix("--query-gpu=").split(","):
        if old and field == "mig.mode.current":
            print(f'Field "{{field}}" is not a valid field to query.\\n')
            sys.exit(2)
    for number, gpu in enumerate(gpus):
        known = {{"index": number, "driver_version": "535.129.03", "memory.total": gpu["memory"], **gpu}}
        known["mig.mode.current"] = gpu["mig"]
        print(", ".join(str(known[field]) for field in arguments[0].removeprefix("--query-gpu=").split(",")))
else:
    sys.exit(2)
"""


def gpu(
    uuid: str, parts: Sequence[tuple[str, str]] = (), *, name: str = A100, memory_mib: int = 40960, mig: str | None = None
) -> Mapping[str, object]:
    """Describe one GPU; `parts` are profile and UUID of each of its MIG devices."""
    mode = mig or ("Enabled" if parts else "Disabled")
    return {"uuid": uuid, "name": name, "memory": memory_mib, "parts": list(parts), "mig": mode}


def write_smi(
    folder: Path,
    gpus: Sequence[Mapping[str, object]] = (),
    *,
    failure: tuple[int, str] | None = None,
    warning: str = "",
    old: bool = False,
) -> Path:
    """Write the stand-in into a folder; with `failure`, one that prints this and ends with this exit code."""
    path = folder / "nvidia-smi"
    path.write_text(_PROGRAM.format(python=sys.executable, state=json.dumps([gpus, failure, warning, old])))
    path.chmod(0o755)
    return path


def use_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *gpus: Mapping[str, object], **options: object) -> None:
    """Let this process find the stand-in, without a CUDA_VISIBLE_DEVICES."""
    write_smi(folder, gpus, **options)  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
