"""The agent: one process on each allocated host, which gets orders on stdin, answers on stdout, and owns its tasks.

    controller -- orders --> agent -- requests --> zygote -- forks --> task, task, ...
               <-- events --       <- pid, exits --
                                  <------------- messages both ways ------> each task

stdin carries the heartbeat: at its end, or after `--heartbeat-timeout-s` without a byte, the controller has ended, and the
agent kills all its descendants and exits. It adopts processes that daemonise, so that they remain descendants. If the agent
itself is killed, the kernel kills its zygote and with it the tasks; daemons are found by their environment (`node/sweep.py`).

A backend starts it with these variables: DTFPERF_HOST_INDEX, DTFPERF_SESSION (the id that a sweep searches) and, on the
controller's own machine, DTFPERF_OWNER (the controller, in the form of `node/owner.py`).
"""

from __future__ import annotations

import os
import sys

from pytest_dtfperf.node import isolation, processes, sweep, wire
from pytest_dtfperf.node.processes import Leave, ignore_signals, leave_on_signals
from pytest_dtfperf.node.serving import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    leave_on_signals()
    host = int(os.environ["DTFPERF_HOST_INDEX"])
    network = isolation.take_inherited_files(os.environ)
    processes.adopt_orphans()
    processes.continue_after_parent()
    os._exit(_run(host, **_parse_options(sys.argv[1:]), network=network))


def _parse_options(arguments: list[str]) -> dict[str, Any]:
    """Parse the command line: `--entry MODULE:FUNCTION`, `--heartbeat-timeout-s`, `--start`, `--device` and `--container`."""
    given = {"--heartbeat-timeout-s": "15", "--start": "warm", **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    return {
        "entry": given["--entry"],
        "heartbeat_timeout_s": float(given["--heartbeat-timeout-s"]),
        "cold": given["--start"] == "cold",
        "device": given.get("--device", ""),
        "container": given.get("--container"),
    }


def _run(host: int, **options: Any) -> int:
    """Serve until the agent must leave, and end all its processes. Returns the exit code; the reason is on stderr."""
    code, agent = 1, None
    try:
        agent = Agent(host, **options)
        agent.serve()
    except Leave as leaving:
        code = leaving.code
        _report(str(leaving))
    except isolation.FirewallUnavailable as exc:  # although it was possible when this agent started
        _report(f"no firewall around the run's ports: {exc}")
    except BrokenPipeError:
        _report("the controller no longer listens")
    except wire.WireError as exc:
        _report(f"the controller uses another protocol: {exc}")
    except Exception:  # the agent must end what it started after any error; the traceback has the error
        import traceback

        traceback.print_exc()
    ignore_signals()
    if survivors := processes.end_descendants():
        _report(f"processes survived SIGKILL: {survivors}")
        code = 1
    if agent:
        agent.close()
    sweep.remove_abandoned_folders()  # those of tasks that were ended in the middle
    return code


def _report(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
