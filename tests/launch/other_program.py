"""An external command that does not use this package, and listens on its port without socket options.

Workers connect to every parameter server, which never ends by itself, and print a rate. The first argument has other actions.
"""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence


def main(what: str, *arguments: str) -> None:
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    role = f"{flags['job_name']}:{flags['task_index']}"
    mine = what.removeprefix(f"{role} ") if what.startswith(f"{role} ") else ""
    _misbehave(mine)
    if flags["job_name"] == "ps":
        _serve(flags["ps_hosts"].split(",")[int(flags["task_index"])], mine)
        return
    for address in flags["ps_hosts"].split(","):
        _connect_to_server(address)
    seen = {name: os.environ.get(name) for name in what.split(",") if name.isupper()}
    print(json.dumps({"cpus": sorted(os.sched_getaffinity(0)), "folder": os.getcwd(), **seen}))
    for rate in (10, 11, 12.5):
        print(f"total images/sec: {rate + int(flags['task_index'])}")


def _serve(address: str, what: str) -> None:
    calls = itertools.repeat(None, int(what.removeprefix("answer "))) if what.startswith("answer ") else itertools.repeat(None)
    with socket.socket() as listening:  # neither SO_REUSEADDR nor SO_REUSEPORT
        listening.bind(("", int(address.rpartition(":")[2])))
        listening.listen()
        for _ in calls:
            listening.accept()[0].close()


def _connect_to_server(address: str) -> None:
    host, _, port = address.rpartition(":")
    while True:  # until it is there: the tasks of a run start together
        try:
            return socket.create_connection((host, int(port))).close()
        except ConnectionRefusedError:
            time.sleep(0.01)


def _misbehave(how: str) -> None:
    if how:
        print(f"I {how}")
    match how.split():
        case ["leave", code]:
            sys.exit(int(code))
        case ["die", name]:
            os.kill(os.getpid(), signal.Signals[name])
        case ["fall", "silent"]:
            signal.pause()
        case ["rate", word]:
            print(f"total images/sec: {word}")
            sys.exit()
        case ["print", "a", "long", "line"]:
            print("x" * 50_000)
            sys.exit()
        case ["leave", "a", ("daemon" | "talker") as who, file]:
            daemon = subprocess.Popen(_sleep_endlessly() if who == "daemon" else _print_endlessly(), start_new_session=True)
            with open(file, "w") as output:
                output.write(str(daemon.pid))
            print("total images/sec: 7")
            sys.exit()


def _print_endlessly() -> Sequence[str]:
    return [sys.executable, "-c", "import time\nwhile True: print('and on', flush=True); time.sleep(0.01)"]


def _sleep_endlessly() -> Sequence[str]:
    return [sys.executable, "-c", "import signal; signal.pause()"]


if __name__ == "__main__":
    main(*sys.argv[1:])
