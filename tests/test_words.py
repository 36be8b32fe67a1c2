"""Tests that names, messages, help and docs use the words of docs/glossary.md and not those that these have replaced."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("pytest_dtfperf", "tests", "benchmarks", "perf_tests", "ci", "docs", ".github")
EXEMPT_FILES = ("tests/test_words.py",)  # it has the replaced words in its tables

# Replaced terms, to what has replaced them: allowed neither in names nor in file names nor in sentences.
TERMS: Mapping[str, str] = {
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

# Words that are replaced in names, and allowed in sentences and in the names of tests.
NAME_WORDS: Mapping[str, str] = {
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
    "patients": "allocated_hosts",
    "unmeasured": "DryRunMeasurement",
    "unjudged": "DryRunBaseline",
    "conversation": "RunController, Examination",
}

# Whole names that are replaced.
WHOLE_NAMES: Mapping[str, str] = {
    "freedom": "degrees_of_freedom",
    "by_chance": "p_value",
    "PART": "FRACTION",
    "Plan": "NightPlan, LaunchPlan, RepeatPlan",
    "Estimate": "CostEstimate, RatioEstimate",
}

# Phrases that are replaced in texts, whose single words are allowed in another sense.
PHRASES: Mapping[str, str] = {
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

# Names with a replaced word that functions may have, but variables and parameters may not, with the reason.
ALLOWED_FUNCTION_NAMES: Mapping[str, str] = {
    "place": "the verb of placement: tasks are placed on hosts, variables on devices",
    "tell": "Python's own, of files",
}

# Words and beginnings of names that tests do not have in names and docstrings.
PRIVATE_WORDS = r"told|tells?|said|says?|nobody|whose|whoever|somebody|lent|meanwhile"
QUESTIONS = ("test_what_", "test_who_", "test_where_", "test_how_", "test_if_", "test_of_")
# Folders with tests: the own ones, and the public suites of backends, inputs, models and exports.
TEST_FOLDERS = ("tests/", "pytest_dtfperf/testing/")

# Lines in which a replaced word is allowed: a part of the line, to the reason.
ALLOWED_TEXTS: Mapping[str, str] = {}


@cache
def list_files() -> list[Path]:
    """Return the paths of all files that are written by hand."""
    found = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    found += [path for path in REPOSITORY.iterdir() if path.suffix in (".md", ".py", ".toml") or path.name == "Makefile"]
    unread = {".pyc", ".png", ".gz", ".jpg"}
    generated = ("docs/_build/", "docs/reference/")  # by a build of the site, from files that are read
    written = (path for path in found if not get_relative_path(path).startswith(generated))
    return [path for path in written if path.suffix not in unread and get_relative_path(path) not in EXEMPT_FILES]


def list_files_in(folder: str) -> list[Path]:
    """Return the paths of the files in a folder of the repository; for an empty name, those beside the folders."""
    return [path for path in list_files() if get_relative_path(path).rpartition("/")[0].partition("/")[0] == folder]


def get_relative_path(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("folder", [*FOLDERS, ""], ids=lambda folder: folder or "the root")
def test_names_are_of_the_glossary(folder: str) -> None:
    """No name of a module, class, function, parameter or variable has a replaced word."""
    own = [path for path in list_files_in(folder) if path.suffix == ".py" and may_have_wrong_names(path.stem, path.read_text())]
    found = [f"{get_relative_path(path)}:{line}" for path in own for line in find_wrong_names(list_names(path), path.stem)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", [*FOLDERS, ""], ids=lambda folder: folder or "the root")
def test_texts_are_of_the_glossary(folder: str) -> None:
    """No message, help, docstring, comment or page of the docs has a replaced term."""
    own = list_files_in(folder)
    found = [f"{get_relative_path(path)}:{line}" for path in own for line in find_wrong_texts(path.read_text(errors="replace"))]
    assert not found, "\n".join(found)


def test_names_and_docstrings_of_tests_are_plain() -> None:
    """Tests and their helpers, the public suites included, are named by subject and behaviour, and have no private word."""
    own = [path for path in list_files() if path.suffix == ".py" and get_relative_path(path).startswith(TEST_FOLDERS)]
    found = [f"{get_relative_path(path)}:{line}" for path in own for line in find_private_words(path.read_text())]
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
    assert list(find_private_words(source)) == expected


def test_exceptions_are_needed() -> None:
    """Each exception in the tables is used."""
    texts = {path: path.read_text(errors="replace") for path in list_files()}
    assert [part for part in ALLOWED_TEXTS if not any(part in text for text in texts.values())] == []
    own = [path for path, text in texts.items() if path.suffix == ".py" and ALLOWED_FUNCTION_NAMES.keys() & list_tokens(text)]
    names = {name for path in own for _, name, _ in list_names(path)}
    assert sorted(ALLOWED_FUNCTION_NAMES.keys() - names) == []


NAME_CASES = {
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


@pytest.mark.parametrize("what", NAME_CASES)
def test_replaced_names_are_found(what: str) -> None:
    """A replaced name of any kind is found with its line and the word to use."""
    source, expected = NAME_CASES[what]
    (found,) = find_wrong_names(find_names(source))
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
def test_ordinary_names_are_allowed(source: str) -> None:
    """A replaced word is allowed in the name of a test, in an allowed name, and within another word."""
    assert list(find_wrong_names(find_names(source))) == []


TEXT_CASES = {
    'raise E("no. How to go on: try again")': "How to go on: is called Hint:",
    "# the warden's last words": "warden is called supervisor",
    "It is measured once more.": "once more is called again",
    "Leases are locks.": "Leases is called lock",
    "the place failed": "the place failed is called cluster",
    "gradients come out as nought": "nought is called zero",
    "`--margin PART`": "--margin PART is called FRACTION",
    "trains by another's program": "another's program is called external command",
}


@pytest.mark.parametrize("text", TEXT_CASES)
def test_replaced_terms_are_found(text: str) -> None:
    """A replaced term in a text is found with its line and the word to use."""
    (found,) = find_wrong_texts(f"\n{text}")
    assert found.startswith(f"2: {TEXT_CASES[text]}")


@pytest.mark.parametrize(
    "text",
    [
        "It takes place in the place of the other, as is said; look at it, meet and agree: a part is told.",
        "forward, release, housekeeper, the warehouse's departments",
    ],
)
def test_ordinary_sentences_are_allowed(text: str) -> None:
    """Ordinary words are allowed in sentences."""
    assert list(find_wrong_texts(text)) == []


def list_tokens(text: str) -> set[str]:
    """Return all names and words of a text, among them every name of a program."""
    return set(re.findall(r"\w+", text))


def may_have_wrong_names(*texts: str) -> bool:
    """Return whether texts have a replaced word at all, in a name or in a sentence. To parse a program takes much longer."""
    tokens = {token for text in texts for token in list_tokens(text)}
    words = {word for token in tokens for word in split_words(token)}
    return not tokens.isdisjoint(WHOLE_NAMES) or any(find_replacements(word, in_test=False) for word in words)


def find_wrong_names(names: Iterable[tuple[int, str, bool]], module: str = "") -> Iterator[str]:
    """Yield the line, the name, the word and its replacement for each name with a replaced word."""
    for line, name, is_variable in dict.fromkeys([(1, module, False), *names]):
        if name in ALLOWED_FUNCTION_NAMES and not is_variable:
            continue
        if name in WHOLE_NAMES:
            yield f"{line}: {name}: is called {WHOLE_NAMES[name]}"
        for word in split_words(name):
            for new in find_replacements(word, in_test=name.startswith("test_")):
                yield f"{line}: {name}: {word} is called {new}"


@cache
def find_replacements(word: str, *, in_test: bool) -> list[str]:
    """Return the replacements of a word; empty for an ordinary one."""
    tables = (TERMS,) if in_test else (TERMS, NAME_WORDS)
    found = (next((new for old, new in table.items() if re.fullmatch(old, word)), None) for table in tables)
    return [new for new in found if new]


@cache
def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case: of, child and bells for `_of_ChildBells`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


@cache
def list_names(path: Path) -> list[tuple[int, str, bool]]:
    return [*find_names(path.read_text())]


def find_names(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line of each name in a program, the name, and whether it is given to a variable or parameter there."""
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


def find_private_words(source: str) -> Iterator[str]:
    """Yield "line: name" of each function or class with such a name, and "line: name: word" of each such docstring."""
    words = {word for token in list_tokens(source) for word in split_words(token)}
    if not any(map(re.compile(PRIVATE_WORDS).fullmatch, words)) and not any(start in source for start in QUESTIONS):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        name, line = getattr(node, "name", "module"), getattr(node, "lineno", 1)
        has_word = any(re.fullmatch(PRIVATE_WORDS, word) for word in split_words(name))
        if has_word or name.startswith(QUESTIONS):
            yield f"{line}: {name}"
        if word := re.search(rf"(?i)\b({PRIVATE_WORDS})\b", ast.get_docstring(node) or ""):
            yield f"{line}: {name}: {word[0]}"


def find_wrong_texts(text: str) -> Iterator[str]:
    """Yield the line, the term and its replacement for each replaced term in a text."""
    terms = {old: new for old, new in PHRASES.items() if re.search(old, text)}
    if any(find_replacements(token.lower(), in_test=True) for token in list_tokens(text)):
        terms |= {rf"(?i:(?<![\w-])({old})(?![\w-]))": new for old, new in TERMS.items()}
    for number, line in enumerate(text.splitlines(), start=1):
        if not terms or any(part in line for part in ALLOWED_TEXTS):
            continue
        for old, new in terms.items():
            if found := re.search(old, line):
                yield f"{number}: {found[0]} is called {new}"
