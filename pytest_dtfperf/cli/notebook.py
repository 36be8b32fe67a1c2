"""`dtfperf notebook`: run JupyterLab on an allocated host, and reach it from the local browser through a tunnel."""

import argparse
import json
import os
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path

from pytest_dtfperf.cli.doctor import DoctorProgress
from pytest_dtfperf.cli.options import DONE, FAILED, Commands, ExitCodes, add_cluster, add_command, add_json, load_cluster
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.clusters.capacity import predict_devices_per_host
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig, get_python
from pytest_dtfperf.errors import RunFailed, UsageError
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import TF_CONFIG, literal

TEXT = """\
Start JupyterLab on a host of a cluster, and print its URL for the local browser. JupyterLab and all its processes end with
this command, with the connection to the host, or when JupyterLab is shut down.

    dtfperf notebook                                 # on this machine
    dtfperf notebook --cluster=daint --gpus=1        # on a node, in a job of Slurm
    dtfperf notebook --cluster=lab --dir=/data/me --open

The host's Python must have JupyterLab: pip install jupyterlab there. On the host it listens on a socket of your user, and
here on a port of the loopback interface. The token in the URL excludes other users of this machine. Ctrl-C ends it. Details:
docs/notebook.md.
"""
ENDS: ExitCodes = {
    DONE: "JupyterLab was shut down",
    FAILED: "the cluster failed",
    "any other": "that of JupyterLab, if it failed (128 + N: killed by signal N)",
}
SHAPE = {
    "url": "the address for the local browser, with the token",
    "host": "the host of JupyterLab",
    "port": "the port of this machine's loopback interface",
    "token": "the token of the URL",
    "log": "the path of JupyterLab's log",
}
TOKEN_BYTES = 24  # 192 bits
TASK = "worker:0"  # JupyterLab's task; the names are those of all programs
HERE = "127.0.0.1"  # as in launch/program_run.py
_MOST_PORT = 65535


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "notebook", help="run JupyterLab on a host of a cluster", text=TEXT, ends=ENDS)
    add_cluster(parser)
    parser.add_argument("--gpus", metavar="N", type=int, default=1, help="number of devices, of one host; by default 1")
    parser.add_argument(
        "--port", metavar="N", type=int, default=0, help="port of this machine's loopback interface; by default any free one"
    )
    text = "the folder on the host; by default the current folder, or your home if the host does not have it"
    parser.add_argument("--dir", metavar="DIR", help=text)
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    add_json(parser, SHAPE)
    text = "the folder of JupyterLab's log; by default a new folder in dtfperf_notebooks"
    parser.add_argument("--logs", metavar="DIR", type=Path, help=text)
    parser.set_defaults(run=run_notebook, cluster="local")


def run_notebook(args: argparse.Namespace) -> int:
    from pytest_dtfperf.launch.program_run import Tunnel
    from pytest_dtfperf.launch.run_controller import log_path
    from pytest_dtfperf.node import sweep
    from pytest_dtfperf.records.session import new_session_id
    from pytest_dtfperf.session import preflight
    from pytest_dtfperf.session.allocation_manager import AllocationManager
    from pytest_dtfperf.session.signals import raise_exit

    if not 0 <= args.port <= _MOST_PORT:
        raise UsageError(f"--port must be a number from 0 to {_MOST_PORT}, not {args.port}")
    if args.open and not _has_display():
        raise UsageError("--open: there is no display here, so no browser. Leave it out, and open the URL where you have one")
    config = _load_config(load_cluster(args), args.gpus)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    spec = _make_spec(args, config, token)
    session = new_session_id()
    logs = args.logs or Path("dtfperf_notebooks") / session
    log = log_path(logs, TASK)
    preflight.check_folders([preflight.logs(logs), preflight.runtime(), preflight.temporary()])
    with DoctorProgress() as progress, raise_exit(), sweep.make_temporary_folder() as folder, Tunnel(args.port) as tunnel:
        allocations = AllocationManager(config, session=session, on_status=progress.show)
        try:
            with allocations.measuring(spec, "dtfperf notebook"):
                launcher = allocations.get_launcher()
                until = _compute_end(config)
                host = launcher.layout(spec).hosts[TASK]
                url = f"http://{HERE}:{tunnel.port}/lab?token={token}"

                def print_connection() -> None:
                    progress.clear()
                    _print_address(host, until)
                    connection = {"url": url, "host": host, "port": tunnel.port, "token": token, "log": str(log)}
                    if args.json:
                        print_json(connection)
                    else:
                        print(url, flush=True)
                    if args.open:
                        _open_browser(url, folder)

                progress.show(f"JupyterLab starts on {host}")
                tunnel.on_ready = print_connection
                unwritten = launcher.launch(spec, log_dir=logs, on_output=None, tunnel=tunnel)
        except RunFailed as failure:
            progress.clear()
            return _report_failure(failure)
        finally:
            allocations.release()
    print_remark(f"JupyterLab was shut down; {unwritten or f'log: {log}'}")
    return DONE


def _load_config(config: ClusterConfig, gpus: int) -> ClusterConfig:
    """Return the cluster with all devices in one process, which needs no TensorFlow."""
    there = predict_devices_per_host(config)
    if gpus < 1 or (there is not None and gpus > there):
        most = f", and on {config.name!r} at most {there}, what one host has" if there is not None else ""
        raise UsageError(f"--gpus must be 1 or more{most}, not {gpus}")
    if config.entry == ClusterConfig.entry:
        config = replace(config, entry="pytest_dtfperf.training.command:run")
    return replace(config, devices_per_worker=gpus, workers_per_host=None)


def _make_spec(args: argparse.Namespace, config: ClusterConfig, token: str) -> Spec:
    from pytest_dtfperf.node.notebook import VARIABLE

    settings = {"token": token, "folder": args.dir, "else": os.getcwd()}
    return Spec(
        model="notebook",
        batch_size=0,
        gpus=args.gpus,
        variable_update="independent",
        command=tuple(make_module_command(get_python(config), "pytest_dtfperf.node.notebook")),
        environment=(f"{VARIABLE}={literal(json.dumps(settings))}",),
        role_flags=TF_CONFIG,
    )


def _compute_end(config: ClusterConfig) -> float | None:
    """Return the latest time at which the hosts are released, if the cluster file limits it."""
    lifetime_s = BACKENDS[config.backend].get_lifetime_s(config.backend_keys)
    return None if lifetime_s is None else time.time() + lifetime_s


def _print_address(host: str, expires_at: float | None) -> None:
    if expires_at is not None:
        end_time = time.strftime("%Y-%m-%d %H:%M", time.localtime(expires_at))
        print_remark(f"{host} is allocated until {end_time} at the latest")
    print_remark(f"JupyterLab is on {host}; Ctrl-C ends it")


def _has_display() -> bool:
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _open_browser(url: str, folder: str) -> None:
    """Open the URL through a private file, as all users can read the command line of a browser."""
    import webbrowser

    page = Path(folder, "open.html")
    page.write_text(f'<!DOCTYPE html><title>JupyterLab</title><meta http-equiv="refresh" content="0; url={escape(url)}">\n')

    def start() -> None:
        with suppress(webbrowser.Error):
            if webbrowser.open(page.as_uri()):
                return
        print_remark("no browser could be started: open the URL yourself")

    # Python would wait for the process of an unknown browser to end, and the run needs messages in that time.
    threading.Thread(target=start, name="dtfperf-browser", daemon=True).start()


def _report_failure(failure: RunFailed) -> int:
    from pytest_dtfperf.node.supervisor import CANNOT_START

    culprit = replace(failure.culprit, task="JupyterLab")
    if culprit.code == CANNOT_START and culprit.last_lines:  # its error is one line
        print_remark(f"{culprit.host}: {culprit.last_lines[-1]}")
    else:
        print_remark(str(culprit))
    return culprit.code or FAILED
