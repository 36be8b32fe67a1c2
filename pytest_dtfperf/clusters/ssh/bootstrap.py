"""The start of Python on a host: a command for the login shell, a script, a header and a bundle of code.

The command, which everyone on the host can read, contains nothing of the cluster file: the script comes on stdin, and its
length is known. It runs the set-up lines without access to its stdin and stdout, in bash as a login shell where there is one:
that is what defines `module` on most sites. Then it becomes Python, which gets `node/boot.py`.

While set-up lines run, the controller sends nothing. So a process that waits for a byte sees the end of the connection, and
ends them.
"""

import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import pytest_dtfperf
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import OLDEST_PYTHON, ClusterConfig
from pytest_dtfperf.clusters.ssh.keys import CONNECT_S, PARALLEL, UV

MARK = "dtfperf: "  # as in node/boot.py
BOOT = Path(pytest_dtfperf.__file__).with_name("node") / "boot.py"

# Any Python version must be able to run this line: an old one reports that it is too old.
LOADER = f"""\
import os, sys
boot = os.environ.pop("DTFPERF_BOOT")
if sys.version_info < {OLDEST_PYTHON!r}:
    print('\\n{MARK}{{"failed": "version", "version": "%d.%d.%d"}}' % sys.version_info[:3])
    sys.exit(1)
sys.path[:] = [folder for folder in sys.path if folder]  # without the home folder
exec(boot)
"""

_SETUP = """\
( exec 9>&- 2>&-; read -r ${{BASH_VERSION:+-t {limit_s:.0f}}} _ <&8 || kill -9 0 ) & dtfperf_watcher=$!
trap 'dtfperf_code=$?; {{ kill -9 $dtfperf_watcher; wait $dtfperf_watcher; }} 2>/dev/null; {failed}' EXIT
{lines}
trap - EXIT
{{ kill -9 $dtfperf_watcher; wait $dtfperf_watcher; }} 2>/dev/null
"""  # bash reports on stderr that a job was killed, between any two commands

_FAILED = f'printf "\\n{MARK}{{\\"failed\\": \\"setup\\", \\"line\\": %d, \\"code\\": %d}}\\n" $dtfperf_line $dtfperf_code >&9'

_AS_LOGIN_SHELL = """\
DTFPERF_SETUP={text}; export DTFPERF_SETUP
if command -v bash >/dev/null; then shell=bash; else shell=sh; fi
exec $shell -lc 'eval "unset DTFPERF_SETUP; $DTFPERF_SETUP"'"""


def make_shell_command(script: bytes) -> str:
    """Return the command that ssh runs. It has no character that csh or fish would read otherwise than sh does."""
    return f"exec sh -c 'eval \"$(dd bs=1 count={len(script)} 2>/dev/null)\"'"


def make_script(setup: Sequence[str], python: str, *, limit_s: float) -> bytes:
    """Return a script for the host's sh that runs the set-up lines within the limit and then becomes Python.

    It prints "at setup" before each line, "at python" before Python starts, and "failed" with the reason of a failure.
    """
    lines = [
        *([_format_setup(setup, limit_s)] if setup else []),
        f"dtfperf_python={_quote_python(python)}",
        'dtfperf_is_program() { command -v -- "$1" >/dev/null && [ ! -d "$1" ]; }',
        f'dtfperf_is_program "$dtfperf_python" || {{ {_report(failed="python")}; exit 1; }}',
        f"DTFPERF_BOOT={shlex.quote(BOOT.read_text(encoding='utf-8'))}; export DTFPERF_BOOT",
        _report(at="python"),
        f'exec "$dtfperf_python" -u -c {shlex.quote(LOADER)} <&8 >&9 8<&- 9>&-',
    ]
    text = "\n".join(lines)
    if setup:
        text = _AS_LOGIN_SHELL.format(text=shlex.quote(text))
    # The shell reads the whole script before it runs any of it: a connection may end in the middle.
    return f"dtfperf() {{\nexec 8<&0 9>&1 </dev/null >&2\n{text}\n}}\ndtfperf\n".encode()


def _format_setup(setup: Sequence[str], limit_s: float) -> str:
    lines = "\n".join(_format_setup_line(number, line) for number, line in enumerate(setup, start=1))
    return _SETUP.format(limit_s=limit_s, lines=lines, failed=_FAILED)


def _format_setup_line(number: int, line: str) -> str:
    """Return code that runs a line in this shell, so that its settings stay. A line that exits the shell has failed, too."""
    return f"dtfperf_line={number}\n{_report(at='setup', line=number)}\neval {shlex.quote(line)} || exit"


def _report(**fields: object) -> str:
    return f"printf '\\n%s\\n' '{MARK}{json.dumps(fields)}' >&9"


def _quote_python(python: str) -> str:
    """Quote the path of Python for the shell. A leading `~` is the user's home on the host."""
    return f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)


UV_S = 1800.0  # TensorFlow with CUDA is 3 GB to fetch and to unpack, where a host has it all to do


def get_setup_lines(config: ClusterConfig) -> Sequence[str]:
    """Return the shell lines of the key `setup`."""
    given = config.backend_keys.get("setup", ())
    return () if given == UV else given


def get_uv_environment(config: ClusterConfig) -> dict[str, Any] | None:
    """Return what `node/environment.py` is to install; None if the host has its own environment."""
    return _read_requirements() if config.backend_keys.get("setup") == UV else None


def adapt_argv(config: ClusterConfig, argv: Sequence[str]) -> list[str]:
    """Return `argv` for hosts: the cluster's Python is replaced by the Python of the environment that it created."""
    if get_uv_environment(config) is not None and argv[0] == named.get_python(config):
        return ["python3", *argv[1:]]
    return list(argv)


def get_connect_s(config: ClusterConfig) -> float:
    """Return how many seconds a healthy host may take to answer."""
    given: float = config.backend_keys.get("connect_s", CONNECT_S)
    return given


def get_limit_s(config: ClusterConfig) -> float:
    """Return how many seconds the whole preparation of a host may take."""
    return get_connect_s(config) if get_uv_environment(config) is None else max(get_connect_s(config), UV_S)


@cache
def _read_requirements() -> dict[str, Any]:
    here = Path(__file__).parent
    requirements = {kind: (here / f"requirements-{kind}.txt").read_text(encoding="utf-8") for kind in ("cpu", "cuda")}
    uv = (here / "requirements-uv.txt").read_text(encoding="utf-8")  # the version that wrote uv.lock, the others' source
    return {
        "uv": {"version": uv.partition("==")[2].split()[0], "requirements": uv},
        "kinds": {
            kind: {"name": f"uv-{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}", "requirements": text}
            for kind, text in requirements.items()
        },
    }


BUNDLE_CONTENT = (
    "__init__.py",
    "errors.py",
    "extensions.py",
    "datamodel/__init__.py",
    "datamodel/task_report.py",
    "node",
    "codec.py",
    "spec",
    "staging/__init__.py",
    "staging/on_host.py",
    "steps.py",
    "traces.py",
    "training",
)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip; the time of writing must not change the bundle


@dataclass(frozen=True)
class Bundle:
    """A zip file and its digest."""

    name: str
    data: bytes


@cache
def make_bundle() -> Bundle:
    """Return the bundle of this package as it is on disk now, so that later edits do not affect the session."""
    return make_bundle_of(Path(pytest_dtfperf.__file__).parent)


def make_bundle_of(package: Path) -> Bundle:
    """Return the bundle of a package's folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path in _list_files(package):
            info = zipfile.ZipInfo(f"{package.name}/{path.relative_to(package).as_posix()}", _EARLIEST)
            info.external_attr = 0o644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            bundle.writestr(info, path.read_bytes())
    data = file.getvalue()
    return Bundle(f"bundle-{hashlib.sha256(data).hexdigest()}", data)


def _list_files(package: Path) -> Iterator[Path]:
    for name in BUNDLE_CONTENT:
        path = package / name
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*.py") if "__pycache__" not in each.parts)
        else:
            yield path


IDLE_S = 1800.0  # how long a supervisor waits for its first order: the slowest host may still be in preparation
_EARLIER_S = 5.0  # this side's limit ends earlier, because it can report which host is late


@dataclass(frozen=True)
class Handshake:
    """The script for the shell, the header and bundle for Python, and the time limit of the whole handshake."""

    script: bytes
    header: Mapping[str, Any]
    bundle: Bundle
    setup: Sequence[str]
    python: str
    connect_s: float
    limit_s: float
    parallel: int

    @classmethod
    def from_config(cls, config: ClusterConfig, *, survey: bool = False, limit_s: float | None = None) -> Self:
        """Return a cluster's handshake. `survey`: each host reports its properties. `limit_s` overrides the cluster's limit."""
        limit_s = limit_s or get_limit_s(config)
        lines, python, bundle = get_setup_lines(config), named.get_python(config), make_bundle()
        header: dict[str, Any] = {"bundle": bundle.name, "bytes": len(bundle.data), "patience_s": IDLE_S, "survey": survey}
        if config.folders:
            header["folders"] = dict(config.folders)
        if wanted := get_uv_environment(config):
            header["environment"] = wanted
        return cls(
            script=make_script(lines, python, limit_s=limit_s + _EARLIER_S),
            header=header,
            bundle=bundle,
            setup=lines,
            python=python,
            connect_s=min(limit_s, get_connect_s(config)),
            limit_s=limit_s,
            parallel=config.backend_keys.get("parallel", PARALLEL),
        )
