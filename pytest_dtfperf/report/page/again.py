"""The command that runs one test of a session again. Pure."""

import shlex
from collections.abc import Sequence

ACCEPTING = ("update-baselines", "allow-regression")
SELECTING = ("-k", "-m", "--deselect", "--ignore")


def make_rerun_command(command: Sequence[str], test: str) -> str:
    """The session's own command for this test alone, without what selects tests and what accepts baselines.

    A session without pytest has one command for all that it measures, which is given as it was.
    """
    if not command or command[0] != "pytest":
        return shlex.join(command)
    return shlex.join(["pytest", *_list_kept_words(command[1:], test), test])


def _list_kept_words(words: Sequence[str], test: str) -> list[str]:
    kept: list[str] = []
    ends_value = False  # whether this word is the value of a dropped option before it
    for word in words:
        name = word.partition("=")[0]
        if ends_value and not word.startswith("-"):
            ends_value = False
        elif name in SELECTING or (name.startswith("-k") and not name.startswith("--")):
            ends_value = word in SELECTING
        elif name.removeprefix("--dtfperf-").removeprefix("--") in ACCEPTING and name.startswith("--"):
            ends_value = name.endswith("allow-regression") and "=" not in word
        elif not _is_selector_of(word, test):
            kept.append(word)
    return kept


def _is_selector_of(word: str, test: str) -> bool:
    """Whether the word is a file, a folder or a test that this test lies in."""
    path = word.removeprefix("./").rstrip("/")
    return not word.startswith("-") and (path == "." or test == path or test.startswith((f"{path}/", f"{path}::", f"{path}[")))
