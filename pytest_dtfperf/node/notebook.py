"""JupyterLab on a host, for `dtfperf notebook`: `python -m pytest_dtfperf.node.notebook`.

It listens on a Unix socket in a private folder, which also has the sockets of its kernels: no other user of the host can
connect. Its settings are in VARIABLE. The token is on no command line, and in no file or environment of a process that it
starts.
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

STEPS = "DTFPERF_STEPS"  # as in pytest_dtfperf/steps.py, which may import TensorFlow
VARIABLE = "DTFPERF_NOTEBOOK"  # JSON: the token, the requested folder or None, and the command's own folder


def main() -> None:
    settings = json.loads(os.environ.pop(VARIABLE))
    socket = os.environ.pop(TUNNEL)
    os.environ.pop(STEPS, None)  # Steps in a cell are not measured
    if util.find_spec("jupyterlab") is None:
        _refuse(
            f"JupyterLab is not installed for this host's Python, {sys.executable}: pip install jupyterlab there (the extra "
            "pytest-dtfperf[notebook] includes it), or set `setup` or `python` in clusters.toml to a Python that has it"
        )
    enter(settings["folder"], settings["else"])
    os.environ["JUPYTER_RUNTIME_DIR"] = os.path.dirname(socket)
    _forget_bundle()
    lab: Any = import_module("jupyterlab.labapp")
    lab.LabApp.launch_instance(make_arguments(socket, settings["token"], os.getcwd()))


def make_arguments(socket: str, token: str, folder: str) -> list[str]:
    """Return the settings of JupyterLab, which override the user's configuration. They are passed within this process."""
    return [
        f"--ServerApp.sock={socket}",
        "--ServerApp.sock_mode=0600",
        "--ServerApp.identity_provider_class=jupyter_server.auth.identity.PasswordIdentityProvider",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.open_browser=False",
        "--ServerApp.allow_root=True",
        "--ServerApp.base_url=/",
        "--ServerApp.certfile=",  # the tunnel carries http, over a connection that no other user can read
        "--ServerApp.keyfile=",
        "--ServerApp.client_ca=",
        "--KernelManager.transport=ipc",
    ]


def enter(wanted: str | None, default: str) -> None:
    """Change to the folder to show: the requested one, else that of the command, else the user's home."""
    folder = default if wanted is None else os.path.join(default, os.path.expanduser(wanted))
    try:
        os.chdir(folder)
    except OSError as exc:  # it does not exist, or this user may not read it
        if wanted is not None:
            _refuse(f"the folder {folder} on this host cannot be shown, {exc.strerror}: set --dir to another one")
        os.chdir(os.path.expanduser("~"))


def _forget_bundle() -> None:
    """Remove the bundle from PYTHONPATH, so that kernels import the installed package, if there is one."""
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not os.path.basename(own).startswith(("bundle-", "dtfperf-")):  # as node/boot.py names it
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
