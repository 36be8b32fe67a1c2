"""A PostgreSQL of one's own: made, started, ended and started anew by a test, in a folder that is removed with it."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pytest_dtfperf.history.where import Address, parse_address

USER = "postgres"  # whom Debian's package brings: root may not run a server
PASSWORD = "p@ss/w:rd"
IN_URL = quote(PASSWORD, safe="")


@dataclass(frozen=True)
class Postgres:
    """A server for one database."""

    folder: Path
    port: int

    @property
    def address(self) -> Address:
        return self.address_with(IN_URL)

    @property
    def url(self) -> str:
        """As its users write it."""
        return self._url(IN_URL)

    def _url(self, password: str) -> str:
        return f"postgresql://perf:{password}@127.0.0.1:{self.port}/postgres"

    def address_with(self, password: str) -> Address:
        found = parse_address(self._url(password), Path())
        assert found
        return found

    def control(self, action: str, *options: str) -> None:
        """pg_ctl: start, stop, restart. Returns when that is done."""
        log = str(self.folder / "log")
        settings = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=off"
        as_user([tool("pg_ctl"), action, "-w", "-D", str(self.folder / "data"), "-l", log, "-o", settings, *options])


def tool(name: str) -> str:
    """One of the server's programs, which Debian keeps out of PATH; empty: it is not installed."""
    beside = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(beside[-1]) if beside else shutil.which(name) or ""


def as_user(command: Sequence[str]) -> None:
    """Not as root, whom a server refuses."""
    who = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
    silent = subprocess.DEVNULL  # a pipe would be the server's, too, and never end
    subprocess.run([*who, *command], check=True, cwd="/", stdin=silent, stdout=silent, stderr=silent)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Runs for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="dtfperf-postgres-", dir="/tmp"))  # short, for a socket
    password = folder / "password"
    password.write_text(PASSWORD)
    if os.geteuid() == 0:
        for path in (folder, password):
            shutil.chown(path, USER)
    server = Postgres(folder, _free_port())
    try:
        who = ["--auth=scram-sha-256", "--username=perf", f"--pwfile={password}"]
        as_user([tool("initdb"), "-D", str(folder / "data"), *who, "--no-sync", "--locale=C", "--encoding=UTF8"])
        server.control("start")
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
