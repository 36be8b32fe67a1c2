"""Import TensorFlow on trial, and report its version and devices: `python -m pytest_dtfperf.node.trial PARENT`.

It runs in its own process, because an import may take minutes, hang, or crash.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time

from pytest_dtfperf.node import processes, wire
from pytest_dtfperf.node.module_command import make_module_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LAST_LINES = 3


def import_tensorflow(within_s: float) -> dict[str, Any]:
    """Return `version`, `gpus` and `import_s`; after a failure or `within_s` seconds, `error` and the child's `last_lines`."""
    command = make_module_command(sys.executable, "pytest_dtfperf.node.trial", str(os.getpid()))
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}  # without its warnings about plugins
    try:
        ended = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not imported within {within_s:g} s", "last_lines": []}
    if ended.returncode == 0:
        return wire.decode(ended.stdout.splitlines()[-1])
    how = f"was killed by signal {-ended.returncode}" if ended.returncode < 0 else "failed"
    lines = [line for line in ended.stderr.decode(errors="replace").splitlines() if line.strip()]
    return {"error": f"the import {how}", "last_lines": lines[-_LAST_LINES:]}


def main() -> None:
    processes.die_with(int(sys.argv[1]))
    began = time.monotonic()
    tensorflow: Any = importlib.import_module("tensorflow")
    took_s = time.monotonic() - began
    gpus = len(tensorflow.config.list_physical_devices("GPU"))
    print(wire.encode({"version": tensorflow.__version__, "gpus": gpus, "import_s": took_s}).decode(), flush=True)
    os._exit(0)  # TensorFlow's own shutdown may take long


if __name__ == "__main__":
    main()
