"""One process per host for as long as the host is allocated: takes orders on stdin, answers on stdout, owns its tasks.

    controller -- orders --> agent -- fork, please --> zygote -- forks --> task, task, ...
               <-- events --       <-- pid, exits ----
                                  <------------- lines both ways --------> each task

stdin carries the heartbeat: at its end, or after `--heartbeat-timeout-s` without a byte, the controller is gone,
and the agent kills everything below itself and leaves. It adopts what daemonises, so "below" is complete. Should the agent
itself be killed, the kernel kills its zygote and with that the tasks; what had daemonised is found by its environment
(`node/sweep.py`).

Started by a backend with DTFPERF_HOST_INDEX, DTFPERF_SESSION (the id a sweep looks for) and, on the controller's own machine,
DTFPERF_OWNER (the controller, as `node/owner.py` names it) in its environment.
"""

from __future__ import annotations

import os
import sys

from pytest_dtfperf.node import guard, isolation, processes, run_folder, wire
from pytest_dtfperf.node.processes import Leave, ignore_signals, leave_on_signals
from pytest_dtfperf.node.serving import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    leave_on_signals()
    host = int(os.environ["DTFPERF_HOST_INDEX"])
    network = isolation.files_given(os.environ)
    processes.adopt_orphans()
    processes.go_on_after_parent()
    os._exit(_live(host, **_options(sys.argv[1:]), network=network))


def _options(arguments: list[str]) -> dict[str, Any]:
    """`--entry MODULE:FUNCTION [--heartbeat-timeout-s SECONDS] [--start warm|cold] [--device cpu|gpu] [--container DIGEST]`."""
    given = {"--heartbeat-timeout-s": "15", "--start": "warm", **dict(zip(arguments[::2], arguments[1::2], strict=True))}
    return {
        "entry": given["--entry"],
        "heartbeat_timeout_s": float(given["--heartbeat-timeout-s"]),
        "cold": given["--start"] == "cold",
        "device": given.get("--device", ""),
        "container": given.get("--container"),
    }


def _live(host: int, **options: Any) -> int:
    """Serve to the end, whatever ends it. Returns the exit code; what a person may want to know is on stderr."""
    code, agent = 1, None
    try:
        agent = Agent(host, **options)
        agent.serve()
    except Leave as leaving:
        code = leaving.code
        _report(str(leaving))
    except guard.FirewallUnavailable as exc:  # it was possible when this agent started
        _report(f"no firewall around the run's ports: {exc}")
    except BrokenPipeError:
        _report("the controller no longer listens")
    except wire.WireError as exc:
        _report(f"the other side speaks differently: {exc}")
    except Exception:  # the agent must end what it started after any error; the traceback has the error
        import traceback

        traceback.print_exc()
    ignore_signals()
    if survivors := processes.end_below():
        _report(f"still alive in spite of SIGKILL: {survivors}")
        code = 1
    if agent:
        agent.close()
    run_folder.remove_abandoned()  # those of tasks that were ended in the middle
    return code


def _report(text: str) -> None:
    print(f"agent: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
