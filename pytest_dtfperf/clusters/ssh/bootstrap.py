"""What the host's shell runs until Python does: a short command for whatever shell the user has there, and a script after it.

Nothing of the cluster file stands in the command, which everybody on the host can read: the script comes on stdin, its length
being known. It runs the set-up lines with stdin and stdout out of their reach, in bash as a login shell reads them where there
is one: that is what defines `module` on most sites. Then it becomes Python, which is given `node/boot.py`.

While set-up lines run, the controller says nothing; so a process that waits for a byte sees the end of the line, and ends them.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest_dtfperf

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


def command(script: bytes) -> str:
    """What ssh is told to run: without a character that csh or fish would read otherwise than sh does."""
    return f"exec sh -c 'eval \"$(dd bs=1 count={len(script)} 2>/dev/null)\"'"


def script(setup: Sequence[str], python: str, *, limit_s: float) -> bytes:
    """For the host's sh: prepare it with these lines, within that time, then become this Python.

    It says "at python" when Python comes next, "at setup" before each line, and "failed" with what has failed.
    """
    lines = [
        *([_prepare(setup, limit_s)] if setup else []),
        f"dtfperf_python={_word(python)}",
        f'command -v -- "$dtfperf_python" >/dev/null && [ ! -d "$dtfperf_python" ] || {{ {_say(failed="python")}; exit 1; }}',
        f"DTFPERF_BOOT={shlex.quote(BOOT.read_text(encoding='utf-8'))}; export DTFPERF_BOOT",
        _say(at="python"),
        f'exec "$dtfperf_python" -u -c {shlex.quote(LOADER)} <&8 >&9 8<&- 9>&-',
    ]
    text = "\n".join(lines)
    if setup:
        text = _AS_LOGIN_SHELL.format(text=shlex.quote(text))
    # Nothing of it is run before all of it is there: a connection may end in the middle.
    return f"dtfperf() {{\nexec 8<&0 9>&1 </dev/null >&2\n{text}\n}}\ndtfperf\n".encode()


def _prepare(setup: Sequence[str], limit_s: float) -> str:
    lines = "\n".join(_line(number, line) for number, line in enumerate(setup, start=1))
    return _SETUP.format(limit_s=limit_s, lines=lines, failed=_FAILED)


def _line(number: int, line: str) -> str:
    """Run a line in this shell, so that what it sets stays. One that leaves the shell has failed, too."""
    return f"dtfperf_line={number}\n{_say(at='setup', line=number)}\neval {shlex.quote(line)} || exit"


def _say(**words: object) -> str:
    return f"printf '\\n%s\\n' '{MARK}{json.dumps(words)}' >&9"


def _word(python: str) -> str:
    """As people write it: `~` is the user's home on the host."""
    return f'"$HOME"/{shlex.quote(python[2:])}' if python.startswith("~/") else shlex.quote(python)
