"""What is sent to a host until Python runs there: a command for its login shell, a script, a header and a bundle of code.

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
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.ssh.keys import CONNECT_S, PARALLEL, UV

MARK = "dtfperf: "  # as in node/boot.py
BOOT = Path(pytest_dtfperf.__file__).with_name("node") / "boot.py"
OLDEST_PYTHON = (3, 11)

# For any Python there ever was: an old one must be able to say so.
LOADER = f"""\
import os, sys
boot = os.environ.pop("DTFPERF_BOOT")
if sys.version_info < {OLDEST_PYTHON!r}:
    print('\\n{MARK}{{"failed": "version", "version": "%d.%d.%d"}}' % sys.version_info[:3])
    sys.exit(1)
sys.path[:] = [folder for folder in sys.path if folder]  # what lies in the home folder is none of ours
exec(boot)
"""

_SETUP = """\
( exec 9>&- 2>&-; read -r ${{BASH_VERSION:+-t {limit_s:.0f}}} _ <&8 || kill -9 0 ) & dtfperf_watcher=$!
trap 'dtfperf_code=$?; {{ kill -9 $dtfperf_watcher; wait $dtfperf_watcher; }} 2>/dev/null; {failed}' EXIT
{lines}
trap - EXIT
{{ kill -9 $dtfperf_watcher; wait $dtfperf_watcher; }} 2>/dev/null
"""  # bash says on stderr that a job was killed, between any two commands

_FAILED = f'printf "\\n{MARK}{{\\"failed\\": \\"setup\\", \\"line\\": %d, \\"code\\": %d}}\\n" $dtfperf_line $dtfperf_code >&9'

_AS_LOGIN_SHELL = """\
DTFPERF_SETUP={text}; export DTFPERF_SETUP
if command -v bash >/dev/null; then shell=bash; else shell=sh; fi
exec $shell -lc 'eval "unset DTFPERF_SETUP; $DTFPERF_SETUP"'"""


def make_shell_command(script: bytes) -> str:
    """What ssh is told to run: without a character that csh or fish would read otherwise than sh does."""
    return f"exec sh -c 'eval \"$(dd bs=1 count={len(script)} 2>/dev/null)\"'"


def make_script(setup: Sequence[str], python: str, *, limit_s: float) -> bytes:
    """For the host's sh: prepare it with these lines, within that time, then become this Python.

    It says "at python" when Python comes next, "at setup" before each line, and "failed" with what has failed.
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
    # Nothing of it is run before all of it is there: a connection may end in the middle.
    return f"dtfperf() {{\nexec 8<&0 9>&1 </dev/null >&2\n{text}\n}}\ndtfperf\n".encode()


def _format_setup(setup: Sequence[str], limit_s: float) -> str:
    lines = "\n".join(_format_setup_line(number, line) for number, line in enumerate(setup, start=1))
    return _SETUP.format(limit_s=limit_s, lines=lines, failed=_FAILED)


def _format_setup_line(number: int, line: str) -> str:
    """Run a line in this shell, so that what it sets stays. One that leaves the shell has failed, too."""
    return f"dtfperf_line={number}\n{_report(at='setup', line=number)}\neval {shlex.quote(line)} || exit"


def _report(**words: object) -> str:
    return f"printf '\\n%s\\n' '{MARK}{json.dumps(words)}' >&9"


def _quote_python(python: str) -> str:
    """As people write it: `~` is the user's home on the host."""
    return f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)


UV_S = 1800.0  # TensorFlow with CUDA is 3 GB to fetch and to unpack, where a host has it all to do


def get_setup_lines(config: ClusterConfig) -> Sequence[str]:
    """The shell lines."""
    given = config.backend_keys.get("setup", ())
    return () if given == UV else given


def get_uv_environment(config: ClusterConfig) -> dict[str, Any] | None:
    """What `node/environment.py` is told to make; None: the host has what it takes."""
    return _read_requirements() if config.backend_keys.get("setup") == UV else None


def adapt_argv(config: ClusterConfig, argv: Sequence[str]) -> list[str]:
    """`argv` as hosts are told it: what was made with the cluster's Python is run by the Python of the environment it is in."""
    if get_uv_environment(config) is not None and argv[0] == named.python(config):
        return ["python3", *argv[1:]]
    return list(argv)


def get_connect_s(config: ClusterConfig) -> float:
    """How long a host that is well may take to answer."""
    given: float = config.backend_keys.get("connect_s", CONNECT_S)
    return given


def get_limit_s(config: ClusterConfig) -> float:
    """How long it may take until it is prepared, from the beginning."""
    return get_connect_s(config) if get_uv_environment(config) is None else max(get_connect_s(config), UV_S)


@cache
def _read_requirements() -> dict[str, Any]:
    here = Path(__file__).parent
    requirements = {kind: (here / f"requirements-{kind}.txt").read_text(encoding="utf-8") for kind in ("cpu", "cuda")}
    uv = (here / "requirements-uv.txt").read_text(encoding="utf-8")  # the one that wrote uv.lock, from which the others come
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
    "measurement.py",
    "node",
    "codec.py",
    "spec",
    "stamps.py",
    "staging/__init__.py",
    "staging/on_host",
    "steps.py",
    "traces.py",
    "training",
)
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip can say; when a file was written is no part of what it holds


@dataclass(frozen=True)
class Bundle:
    """A zip file."""

    name: str
    data: bytes


@cache
def make_bundle() -> Bundle:
    """This package's, as it lies here now: a session that is edited under way goes on with what it began."""
    return make_bundle_of(Path(pytest_dtfperf.__file__).parent)


def make_bundle_of(package: Path) -> Bundle:
    """The same of any such folder."""
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


IDLE_S = 1800.0  # for which a supervisor waits for its first order: the slowest of the other hosts may still be prepared
_EARLIER_S = 5.0  # people are told who is late by this side, which knows more


@dataclass(frozen=True)
class Handshake:
    """A script for the shell, a header and a bundle for Python, and for how long all of it may take."""

    script: bytes
    header: Mapping[str, Any]
    bundle: Bundle
    setup: Sequence[str]
    python: str
    connect_s: float
    limit_s: float
    parallel: int

    @classmethod
    def of(cls, config: ClusterConfig, *, survey: bool = False, limit_s: float | None = None) -> Self:
        """`survey`: each host says what the controller must know of it. `limit_s`: how long it may take, if not as usual."""
        limit_s = limit_s or get_limit_s(config)
        lines, python, bundle = get_setup_lines(config), named.python(config), make_bundle()
        header: dict[str, Any] = {"bundle": bundle.name, "bytes": len(bundle.data), "patience_s": IDLE_S, "survey": survey}
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
