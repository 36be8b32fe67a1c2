"""Asking whoever sits at the terminal, while pytest has taken stdin, stdout and stderr for itself."""

import os
import select

TERMINAL = "/dev/tty"  # this process's own terminal, whatever its streams are connected to
PATIENCE_S = 300.0  # for a person to come back from coffee; a job whose terminal is a machine's must not wait for ever
_YES = ("y", "yes")


def ask_at_terminal(question: str, patience_s: float = PATIENCE_S) -> bool | None:
    """Whether somebody says yes. None: there is nobody to ask, or nobody has answered for so long."""
    if os.environ.get("PYTEST_XDIST_WORKER"):  # several would ask at once, and each would read the others' answers
        return None
    try:
        terminal = os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():  # in the background: reading would stop this process until it is fetched
            return None
        os.write(terminal, f"\n{question} [y/N] ".encode())
        ready, _, _ = select.select([terminal], [], [], patience_s)
        if not ready:
            os.write(terminal, b"\n")
            return None
        return os.read(terminal, 1024).decode(errors="replace").strip().lower() in _YES
    except OSError:  # it was hung up
        return None
    finally:
        os.close(terminal)
