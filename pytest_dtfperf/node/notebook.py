"""JupyterLab as `dtfperf notebook` has it on a host: `python -m pytest_dtfperf.node.notebook`.

It listens at a Unix socket in a folder that is this user's alone, where its kernels' sockets are too: no other user on the host
can even connect. What it must know comes in VARIABLE; the token is on no command line, and in no file or environment of what
it starts.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module, util

from pytest_dtfperf.node.supervisor import CANNOT_START
from pytest_dtfperf.node.tunnel import VARIABLE as TUNNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

STEPS = "DTFPERF_STEPS"  # as pytest_dtfperf/steps.py has it, which may import TensorFlow
VARIABLE = "DTFPERF_NOTEBOOK"  # JSON: the token, the folder to show or None, and one to show then if it is here


def main() -> None:
    settings = json.loads(os.environ.pop(VARIABLE))
    socket = os.environ.pop(TUNNEL)
    os.environ.pop(STEPS, None)  # a cell's Steps are not judged, and need not wait for its devices
    if util.find_spec("jupyterlab") is None:
        _refuse(
            f"JupyterLab is not installed for this host's Python, {sys.executable}: pip install jupyterlab there (the extra "
            "pytest-dtfperf[notebook] brings it), or have setup or python in clusters.toml choose one that has it"
        )
    enter(settings["folder"], settings["else"])
    os.environ["JUPYTER_RUNTIME_DIR"] = os.path.dirname(socket)
    _forget_bundle()
    lab: Any = import_module("jupyterlab.labapp")
    lab.LabApp.launch_instance(arguments(socket, settings["token"], os.getcwd()))


def arguments(socket: str, token: str, folder: str) -> list[str]:
    """Return its settings, which override the user's own configuration: they are handed over within this process."""
    return [
        f"--ServerApp.sock={socket}",
        "--ServerApp.sock_mode=0600",
        "--ServerApp.identity_provider_class=jupyter_server.auth.identity.PasswordIdentityProvider",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        "--ServerApp.base_url=/",
        "--ServerApp.certfile=",  # what the tunnel carries is http, inside of a line that no other user reads
        "--ServerApp.keyfile=",
        "--ServerApp.client_ca=",
        "--KernelManager.transport=ipc",
    ]


def enter(wanted: str | None, otherwise: str) -> None:
    """Change to the folder to show: the one asked for, else the one the command was called in, else the user's home."""
    folder = otherwise if wanted is None else os.path.join(otherwise, os.path.expanduser(wanted))
    try:
        os.chdir(folder)
    except OSError as exc:  # it is not there, or another user's
        if wanted is not None:
            _refuse(f"there is no folder {folder} on this host that can be shown, {exc.strerror}: set --dir=..., one that can")
        os.chdir(os.path.expanduser("~"))


def _forget_bundle() -> None:
    """What has travelled here is no package to import from: kernels shall find the one that is installed, if one is."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.basename(own).startswith(("bundle-", "dtfperf-")):  # as node/boot.py calls it
        return
    others = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != own]
    if others:
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)


def _refuse(why: str) -> NoReturn:
    print(why, flush=True)
    sys.exit(CANNOT_START)


if __name__ == "__main__":
    main()
