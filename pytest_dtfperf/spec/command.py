"""An external command as the workload: what it may be told, and how its words are filled in. Pure.

    train(command=["python", "train.py", "--batch_size={batch_size}"], rate_pattern=r"total images/sec: ([\\d.]+)", ...)

docs/command.md tells all of it. What is not said is as tf_cnn_benchmarks has it.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pytest_dtfperf.errors import SpecError, nearest
from pytest_dtfperf.spec import rate_of
from pytest_dtfperf.spec.fields import Fields

ROLE_FLAGS = ("--job_name={job}", "--task_index={index}", "--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}")
TF_CONFIG = "TF_CONFIG"  # instead of flags: https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver

# What a task's words may ask for beside the fields of the spec.
ROLE = (
    "job", "index", "ps_hosts", "worker_hosts", "chief_hosts", "chief_host", "chief_port", "hosts", "workers", "devices",
    "threads",
)  # fmt: skip
_NEED_ADDRESSES = {"chief_host", "chief_port", "hosts"}  # of a lone task, too, which has none otherwise
COMMAND_FIELDS = ("command", "command_dir", "rate_pattern", "rate_of", "role_flags")  # of a spec
_NO_WORDS = {"environment", *COMMAND_FIELDS}  # no single word each
# Decides where tasks are placed, what they compute on, or what people call it, whether or not a word asks for it.
_HEARD_ANYWAY = {"model", "batch_size", "gpus", "num_ps", "variable_update", "cross_replica_sync", "cpu_affinity"}
ASKED = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
_NAME = re.compile(r"[\w.+-]+")


def program(command: Sequence[str]) -> str:
    """What people call it: the script or the module that an interpreter is given, else the program itself."""
    words = list(map(str, command))
    scripts = [word for at, word in enumerate(words) if word.endswith((".py", ".sh")) or (at and words[at - 1] == "-m")]
    name = os.path.basename((scripts or words)[0]).removesuffix(".py").removesuffix(".sh")
    return re.sub(r"[^\w.+-]+", "_", name) or "program"


def asked_for(command: Iterable[str], role_flags: Iterable[str] | None, environment: Iterable[str] = ()) -> list[str]:
    """Return the names in braces, in the order in which they are first used."""
    return names_in((*command, *flags_of(role_flags), *environment))


def names_in(words: Iterable[str]) -> list[str]:
    """Return the names in braces, without those in doubled ones, in the order in which they are first used."""
    return list(dict.fromkeys(match[2] for word in words for match in ASKED.finditer(str(word)) if match[2]))


def literal(text: str) -> str:
    """Return a word that is filled in as this text, whatever braces are in it."""
    return re.sub(r"\{(\w+)\}", r"{{\1}}", text)


def needs_addresses(spec: Fields) -> bool:
    """Whether a command's task needs an address even where it is alone."""
    return bool(spec.command) and not _NEED_ADDRESSES.isdisjoint(asked_for(spec.command, spec.role_flags, spec.environment))


def flags_of(role_flags: Iterable[str] | None) -> tuple[str, ...]:
    """The words that tell a task who it is and where the others are; none where TF_CONFIG does."""
    if role_flags is None:
        return ROLE_FLAGS
    return () if isinstance(role_flags, str) else tuple(role_flags)


def check(spec: Fields) -> None:
    """Raise `SpecError` with what is wrong and what is allowed."""
    if not spec.command:
        _check_absent(spec)
        return
    _check_kinds(spec)
    _check_words(spec)
    rate_of.check(spec)


def _check_absent(spec: Fields) -> None:
    for name in COMMAND_FIELDS:
        if getattr(spec, name) != spec.__dataclass_fields__[name].default:
            raise SpecError(f"{name} is for an external command, and there is no command: command=['python', 'train.py', ...]")
    for name in names_in(spec.environment):
        if name in ROLE or name in spec.__dataclass_fields__:
            raise SpecError(
                f"environment asks for {{{name}}}, and there is no command: only the environment of an external command is "
                f"filled in. Braces that mean themselves are allowed around any other name"
            )


def _check_kinds(spec: Fields) -> None:
    for name in ("command", "role_flags"):
        value = getattr(spec, name)
        if name == "role_flags" and (value is None or value == TF_CONFIG):
            continue
        if not isinstance(value, tuple) or not all(isinstance(word, str) and word for word in value):
            also = f", or {TF_CONFIG!r}" if name == "role_flags" else ""
            raise SpecError(f"{name} must be a list of words, as in ['python', 'train.py', '--steps=20']{also}, not {value!r}")
    if not (isinstance(spec.model, str) and _NAME.fullmatch(spec.model)):
        raise SpecError(f"model={spec.model!r} is what the program's results are called: letters, digits and ._+- only")
    if spec.evaluate:
        raise SpecError("evaluate=true is for our own training: what an external command has learnt is not known")


def _check_words(spec: Fields) -> None:
    values = values_of(spec)
    flags = flags_of(spec.role_flags)
    for what, words in {"command": spec.command, "role_flags": flags, "environment": spec.environment}.items():
        for name in names_in(words):
            if name in ROLE or name in values:
                continue
            if name in spec.__dataclass_fields__ and name not in _NO_WORDS:
                raise SpecError(f"{what} asks for {{{name}}}, which has no value. Pass {name}=... to train()")
            raise SpecError(_unknown(what, name, (*ROLE, *(n for n in spec.__dataclass_fields__ if n not in _NO_WORDS))))
    names = asked_for(spec.command, spec.role_flags, spec.environment)
    for name, field in spec.__dataclass_fields__.items():
        if getattr(spec, name) != field.default and name not in {*names, *_HEARD_ANYWAY, *_NO_WORDS}:
            raise SpecError(
                f"{name} has no effect on an external command unless its command or environment asks for {{{name}}}"
            )
    if spec.num_ps and spec.role_flags != TF_CONFIG and "index" not in names:
        raise SpecError(
            "nothing tells the program's tasks which of them is which: role_flags or environment must ask for {index}, or "
            "role_flags be "
            f"{TF_CONFIG!r}, or be left out for {' '.join(ROLE_FLAGS)}"
        )


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    found = nearest(name, known)
    hint = f" Did you mean {{{found}}}?" if found else ""
    return (
        f"{what} asks for {{{name}}}, which is unknown.{hint} Known are {', '.join(ROLE)} and the fields of a spec. "
        f"Braces that mean themselves are doubled: {{{{{name}}}}}"
    )


def values_of(spec: Fields) -> dict[str, str]:
    """The fields of the spec as words, where they have a value."""
    found = {name: getattr(spec, name) for name in spec.__dataclass_fields__ if name not in _NO_WORDS}
    if not spec.batch_size:  # the program's own affair
        del found["batch_size"]
    return {name: _word(value) for name, value in found.items() if value is not None}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
