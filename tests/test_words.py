"""Words that were given up for those of docs/glossary.md do not come back: not in names, and not in messages, help and docs."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("pytest_dtfperf", "tests", "benchmarks", "perf_tests", "ci", "docs", ".github")
TOLD_HERE = ("tests/test_words.py",)  # which have to say them

# What has been given up altogether, as names have it in them, as files are called and as sentences say it.
EVERYWHERE: Mapping[str, str] = {
    "rehearsal|rehears(e|ed|es)": "dry run",
    "planted": "injected",
    "drills?": "injected slow-down",
    "vigil": "run monitor",
    "wardens?|ward": "supervisor",
    "parcels?": "bundle",
    "prelude": "bootstrap",
    "farewell|departure": "shutdown",
    "keepers?": "watchdog",
    "leases?": "lock (of files), keep-alive step (of Slurm) or heartbeat (of agents)",
    "noughts?": "zero",
    "bury|buried|buries": "reap",
}

# What is an ordinary word in a sentence, the names of tests among them, and was given up as a term.
IN_NAMES: Mapping[str, str] = {
    "places?": "cluster_settings, backend_keys, fingerprint, machines, barrier, position, index",
    "said": "given, output, reported_rate",
    "tells?": "on_status, notify, send",
    "looks?|looked": "evaluation, analysis, sample, inspect, poll",
    "course": "measured_steps",
    "attend": "run_measured_steps",
    "meets?|meetings?": "barrier",
    "agree|agreed|agreement": "broadcast, confirm",
    "depart": "shut_down",
    "bell": "SigchldPipe",
    "greets?|greeting|greeted": "handshake, hello",
    "dismiss|dismissed": "cancel",
    "passing": "transient",
    "complain|complaints?": "validate, problem, failure",
    "patients": "lent_hosts",
    "unmeasured": "DryRunMeasurement",
    "unjudged": "DryRunBaseline",
    "conversation": "RunController, Examination",
}

# Whole names that were given up.
NAMES: Mapping[str, str] = {
    "freedom": "degrees_of_freedom",
    "by_chance": "p_value",
    "PART": "FRACTION",
    "Plan": "NightPlan, LaunchPlan, RepeatPlan",
    "Estimate": "CostEstimate, RatioEstimate",
}

# Terms, where a sentence may have their words in another sense.
IN_TEXTS: Mapping[str, str] = {
    "How to go on:": "Hint:",
    r"\bonce more\b": "again, or the label `rerun`",
    r"\bMend\b": "Fix",
    r"\banother's (program|command)\b|\bprogram of another's\b": "external command",
    r"\bplant(s|ing)? (a|the) (slow-down|sleep)\b": "inject",
    r"\b(broken|named) place\b|\b[Tt]he place fail(s|ed)\b|\berror of the place\b|\*place\*": "cluster",
    r"\b(a|an|the|last|first|every|each|one) looks? at the (whole )?test set\b|\blooks within training\b": "evaluation",
    r"\ba part of 1\b": "fraction",
    r"(--[a-z-]+[ =])PART\b": "FRACTION",
}

# Functions that are called so and may: the reason. A variable or parameter may not.
MAY_BE_CALLED: Mapping[str, str] = {
    "place": "the verb of placement: tasks are placed on hosts, variables on devices",
    "tell": "Python's own, of files",
}

# What names and docstrings of tests do not have.
PRIVATE_WORDS = r"told|tells?|said|says?|nobody|whose|whoever|somebody|lent|meanwhile"
QUESTIONS = ("test_what_", "test_who_", "test_where_", "test_how_", "test_if_", "test_of_")
# Names that are kept: a test that overrides one of the public suite of backends.
KEPT_NAMES = frozenset(("test_what_a_dead_controller_left_is_swept",))

# Texts in which such a word may stand: a part of the line, and the reason.
MAY_SAY: Mapping[str, str] = {}


@cache
def files() -> list[Path]:
    """Everything that people write here."""
    found = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    found += [path for path in REPOSITORY.iterdir() if path.suffix in (".md", ".py", ".toml") or path.name == "Makefile"]
    unread = {".pyc", ".png", ".gz", ".jpg"}
    made = ("docs/_build/", "docs/reference/")  # by a build of the site, of what is read where it comes from
    written = (path for path in found if not called(path).startswith(made))
    return [path for path in written if path.suffix not in unread and called(path) not in TOLD_HERE]


def called(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("folder", [*FOLDERS, ""], ids=lambda folder: folder or "the root")
def test_names_are_of_the_glossary(folder: str) -> None:
    """No name of a module, class, function, parameter or variable has a word that was given up."""
    own = [path for path in files() if path.suffix == ".py" and called(path).rpartition("/")[0].partition("/")[0] == folder]
    found = [f"{called(path)}:{line}" for path in own for line in wrong_names(names_of(path), path.stem)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", [*FOLDERS, ""], ids=lambda folder: folder or "the root")
def test_texts_are_of_the_glossary(folder: str) -> None:
    """No message, help, docstring, comment or page of the docs says a term that was given up."""
    own = [path for path in files() if called(path).rpartition("/")[0].partition("/")[0] == folder]
    found = [f"{called(path)}:{line}" for path in own for line in wrong_texts(path.read_text(errors="replace"))]
    assert not found, "\n".join(found)


def test_names_and_docstrings_of_tests_are_plain() -> None:
    """Tests and their helpers are named by subject and behaviour, and their docstrings have no private word."""
    own = [path for path in files() if path.suffix == ".py" and called(path).startswith("tests/")]
    found = [f"{called(path)}:{line}" for path in own for line in private_words(path.read_text())]
    assert own
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_what_is_lost(): pass", ["1: test_what_is_lost"]),
        ("x = 1\n\ndef told(): pass", ["3: told"]),
        ('def f():\n    """Return the host whose agent is lost."""', ["1: f: whose"]),
        ('"""Nobody waits."""', ["1: module: Nobody"]),
        ('def test_whatever_comes(): pass\n\ndef retell():\n    """Foretold."""', []),
    ],
)
def test_private_words_are_found(source: str, expected: list[str]) -> None:
    """A question as a name, and a private word in a name or docstring, are found with their line."""
    assert list(private_words(source)) == expected


def test_exceptions_are_needed() -> None:
    """What may be called so, or said, is: an exception goes with its reason."""
    texts = [path.read_text(errors="replace") for path in files()]
    assert [said for said in MAY_SAY if not any(said in text for text in texts)] == []
    names = {name for path in files() if path.suffix == ".py" for _, name, _ in names_of(path)}
    assert sorted((MAY_BE_CALLED.keys() | KEPT_NAMES) - names) == []


NAMED = {
    "a class": ("class Vigil: pass", "1: Vigil: vigil is called run monitor"),
    "a constant": ("KEEPER_S = 1", "1: KEEPER_S: keeper is called watchdog"),
    "a parameter": ("def f(*, places): pass", "1: places: places is called cluster_settings"),
    "an argument": ("\nf(planted=1)", "2: planted: planted is called injected"),
    "an attribute": ("a.lease_s", "1: lease_s: lease is called lock"),
    "a name in an f-string": ('f"{complaint}"', "1: complaint: complaint is called validate"),
    "an import": ("from a import parcel", "1: parcel: parcel is called bundle"),
    "another name for it": ("import a as prelude", "1: prelude: prelude is called bootstrap"),
    "a test": ("def test_a_drill_is_refused(): pass", "1: test_a_drill_is_refused: drill is called injected slow-down"),
    "a whole name": ("x.freedom", "1: freedom: is called degrees_of_freedom"),
    "a variable with a function's name": ("place = 1", "1: place: place is called cluster_settings"),
    "a captured name": ("match a:\n    case {'x': said}: pass", "2: said: said is called given"),
}


@pytest.mark.parametrize("what", NAMED)
def test_names_that_come_back_are_found(what: str) -> None:
    """Whatever has such a name, with its line and the word to take."""
    source, expected = NAMED[what]
    (found,) = wrong_names(names_in(source))
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "source",
    [
        "def test_what_is_said_is_told_as_such(): pass",
        "placement = degrees_of_freedom = 1",
        "def place(tasks): pass",
        "forward, steward, foretell = 1, 2, 3",
    ],
)
def test_ordinary_names_are_not(source: str) -> None:
    """A test's name is a sentence, and a word within another one is none."""
    assert list(wrong_names(names_in(source))) == []


SAID = {
    'raise E("no. How to go on: try again")': "How to go on: is called Hint:",
    "# the warden's last words": "warden is called supervisor",
    "It is measured once more.": "once more is called again",
    "Leases are locks.": "Leases is called lock",
    "the place failed": "the place failed is called cluster",
    "gradients come out as nought": "nought is called zero",
    "`--margin PART`": "--margin PART is called FRACTION",
    "trains by another's program": "another's program is called external command",
}


@pytest.mark.parametrize("text", SAID)
def test_terms_that_come_back_are_found(text: str) -> None:
    """In any text, with the word to take."""
    (found,) = wrong_texts(f"\n{text}")
    assert found.startswith(f"2: {SAID[text]}")


@pytest.mark.parametrize(
    "text",
    [
        "It takes place in the place of the other, as is said; look at it, meet and agree: a part is told.",
        "forward, release, housekeeper, the warehouse's departments",
    ],
)
def test_ordinary_sentences_are_not(text: str) -> None:
    """Ordinary words are, and so is what has its reason."""
    assert list(wrong_texts(text)) == []


def wrong_names(names: Iterable[tuple[int, str, bool]], module: str = "") -> Iterator[str]:
    """A line for each name that has a word that was given up: its line, the name, the word, and what took its place."""
    for line, name, is_variable in dict.fromkeys([(1, module, False), *names]):
        if name in MAY_BE_CALLED and not is_variable:
            continue
        if name in NAMES:
            yield f"{line}: {name}: is called {NAMES[name]}"
        for word in words_of(name):
            for now in called_now(word, in_test=name.startswith("test_")):
                yield f"{line}: {name}: {word} is called {now}"


@cache
def called_now(word: str, *, in_test: bool) -> list[str]:
    """What has taken the place of a word, if something has."""
    tables = (EVERYWHERE,) if in_test else (EVERYWHERE, IN_NAMES)
    found = (next((now for old, now in table.items() if re.fullmatch(old, word)), None) for table in tables)
    return [now for now in found if now]


def words_of(name: str) -> list[str]:
    """`_of_ChildBells` is of, child and bells."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@cache
def names_of(path: Path) -> list[tuple[int, str, bool]]:
    return [*names_in(path.read_text())]


def names_in(source: str) -> Iterator[tuple[int, str, bool]]:
    """Every name in a program, f-strings' included: its line, the name, and whether a variable or a parameter gets it here."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        match node:
            case ast.Name(id=name, ctx=context):
                yield line, name, isinstance(context, ast.Store)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield line, name, True
            case ast.MatchMapping(rest=str(name)) | ast.ExceptHandler(name=str(name)):
                yield line, name, True
            case (
                ast.Attribute(attr=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield line, name, False
            case ast.alias(name=name, asname=other):
                yield line, other or name.rpartition(".")[2], False


def private_words(source: str) -> Iterator[str]:
    """Yield "line: name" of each function or class with such a name, and "line: name: word" of each such docstring."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        name, line = getattr(node, "name", "module"), getattr(node, "lineno", 1)
        has_word = any(re.fullmatch(PRIVATE_WORDS, word) for word in words_of(name))
        if name not in KEPT_NAMES and (has_word or name.startswith(QUESTIONS)):
            yield f"{line}: {name}"
        if word := re.search(rf"(?i)\b({PRIVATE_WORDS})\b", ast.get_docstring(node) or ""):
            yield f"{line}: {name}: {word[0]}"


def wrong_texts(text: str) -> Iterator[str]:
    """A line for each term that was given up: its line, the term, and what took its place."""
    everywhere = rf"(?i:(?<![\w-])({'|'.join(EVERYWHERE)})(?![\w-]))"
    terms = {old: now for old, now in IN_TEXTS.items() if re.search(old, text)}
    if re.search(everywhere, text):
        terms |= {rf"(?i:(?<![\w-])({old})(?![\w-]))": now for old, now in EVERYWHERE.items()}
    for number, line in enumerate(text.splitlines(), start=1):
        if not terms or any(may in line for may in MAY_SAY):
            continue
        for old, now in terms.items():
            if found := re.search(old, line):
                yield f"{number}: {found[0]} is called {now}"
