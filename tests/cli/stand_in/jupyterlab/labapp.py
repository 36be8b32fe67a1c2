"""A server at a Unix socket that requires the token, and starts a kernel that ends only with SIGKILL."""

import hashlib
import json
import os
import signal
import socketserver
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KERNEL = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
BLOCK = bytes(range(251)) * 261  # of no length that anything else has


class LabApp:
    @classmethod
    def launch_instance(cls, argv: list[str]) -> None:
        options = dict(word.removeprefix("--").split("=", 1) for word in argv)
        kernel = subprocess.Popen([sys.executable, "-c", KERNEL, "kernel"], start_new_session=True)
        Path("pids.json").write_text(json.dumps({"server": os.getpid(), "agent": _find_agent(), "kernel": kernel.pid}))
        print("it listens")
        with Server(options["ServerApp.sock"], Handler) as server:
            server.token = options["IdentityProvider.token"]
            os.chmod(options["ServerApp.sock"], 0o600)
            server.serve_forever()
        kernel.kill()


def _find_agent() -> int:
    """Return the process id of the agent: the parents are the task, the zygote and the agent."""
    pid = os.getpid()
    for _ in range(3):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    token = ""


class Handler(socketserver.StreamRequestHandler):
    server: Server
    rbufsize = 0  # what comes after the headers is not read with them

    def handle(self) -> None:
        _, target, _ = self.rfile.readline().decode().split()
        headers: dict[str, str] = {}
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        url = urlsplit(target)
        if parse_qs(url.query).get("token") != [self.server.token]:
            self._answer(403, b"")
        elif url.path == "/lab":
            self._answer(200, b"<title>JupyterLab</title>")
        elif url.path.startswith("/bytes/"):
            self._bytes(int(url.path.rpartition("/")[2]))
        elif url.path == "/sum":
            found, left = hashlib.sha256(), int(headers["content-length"])
            while left and (data := self.rfile.read(min(left, 1 << 16))):
                found.update(data)
                left -= len(data)
            self._answer(200, found.hexdigest().encode())
        elif url.path == "/about":
            about: dict[str, Any] = {"folder": os.getcwd(), "environment": dict(os.environ)}
            self._answer(200, json.dumps(about).encode())
        elif url.path == "/echo":  # not HTTP any more, as a websocket is not
            self._answer(101, b"")
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        elif url.path == "/shutdown":
            self._answer(200, b"")
            self.server.shutdown()
        elif url.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, code: int, body: bytes) -> None:
        self.wfile.write(f"HTTP/1.1 {code} .\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)

    def _bytes(self, count: int) -> None:
        self.wfile.write(f"HTTP/1.1 200 .\r\nContent-Length: {count}\r\n\r\n".encode())
        while count:
            part = BLOCK[:count]
            self.wfile.write(part)
            count -= len(part)
