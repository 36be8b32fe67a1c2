"""Programs that talk to hosts, started so that none of them outlives this process in standstill.

They end when their stdin does, but one that was stopped (SIGSTOP) never reads that. So the kernel is asked to have them go on
when this process ends, however that happens (PR_SET_PDEATHSIG with SIGCONT): to one that runs, that is nothing.
"""

import errno
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

# In the place of the program, until it becomes that: some milliseconds. What Python ignores, programs would go on ignoring; and
# where no locale is set, it sets one in its environment, which is not the program's.
_PROGRAM = """
import ctypes, os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(1, int(signal.SIGCONT), 0, 0, 0)
with open("/proc/self/environ", "rb") as file:
    given = dict(entry.split(b"=", 1) for entry in file.read().split(b"\\0") if b"=" in entry)
os.execvpe(sys.argv[1], sys.argv[1:], given)
"""


def tethered(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What to start for `argv`. Raises `FileNotFoundError`, as starting it would, where there is no such program."""
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, *argv]
