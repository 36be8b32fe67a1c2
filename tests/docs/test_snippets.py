"""Check every block of every page by its kind: run or parse commands, read or train examples, and compare outputs.

A comment above a block, which is not rendered, selects the kind:

    <!-- printed by: dtfperf history list -->       an output: the command is run, and must print such lines
    <!-- tested by: tests/report/test_causes.py --> another test compares the block with the code
    <!-- drawn: the path of a request -->           a picture with arrows or a tree
    <!-- given: batches = iter(range(100)) -->      Python code that replaces the reader's own
"""

import ast
import importlib
import inspect
import json
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from ruff import find_ruff_bin  # type: ignore[import-untyped]

from pytest_dtfperf.clusters import named
from pytest_dtfperf.compare.variants import FIELDS, STACK_KEYS, Variant
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.extensions import GROUPS
from pytest_dtfperf.plugin.fixture_objects import Baseline, Train
from pytest_dtfperf.plugin.options import OPTIONS
from pytest_dtfperf.session import Session
from pytest_dtfperf.spec import Spec
from tests.docs import commands
from tests.docs.pages import PAGES, REPOSITORY, Block, blocks, tokens
from tests.docs.project import Project, make
from tests.plugin.conftest import Ended

WORKBENCH = REPOSITORY / "tests" / "thirdparty" / "package"
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
SEEN = re.compile(rf"\b(?:{MONTHS}) 20\d\d\b")
TERM = r"[A-Za-z/][\w/ '-]*(?:\(\w\))?"
FORMULA = re.compile(rf"{TERM} += .+|\w+ +::= .+")


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make(tmp_path_factory.mktemp("docs") / "project")


@pytest.fixture
def project(shared_project: Project, page: str, tmp_path: Path) -> Project:
    """Return a project for the page, with the clusters that the page describes."""
    described = [textwrap.dedent(block.text) for block in blocks(page) if _kind(block) is _cluster]
    return shared_project.copy(tmp_path / "project", "\n".join(described))


@pytest.mark.campaign  # each page, and in campaigns also the long commands
@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_each_page_are_correct(page: str, project: Project) -> None:
    """Each block passes the check of its kind; the message has the lines of all others."""
    problems = []
    printed: dict[str, Ended] = {}
    for block in blocks(page):
        try:
            _kind(block)(block, project, printed)
        except (AssertionError, DtfPerfError, ValueError, SyntaxError) as problem:
            problems.append(f"{block}: {str(problem).partition(chr(10) + 'assert ')[0]}")
    assert not problems, "\n\n".join(problems)


Printed = dict[str, Ended]
Kind = Callable[[Block, Project, Printed], None]


def _kind(block: Block) -> Kind:
    """Return the kind of a block, from its comment, its language and its text."""
    for note, kind in (("printed by", _output), ("tested by", _tested_elsewhere), ("drawn", _picture)):
        if block.note(note):
            return kind
    if block.language.startswith("{"):
        return _directive
    if block.language == "toml":
        return _cluster if re.search(r"(?m)^ *(backend = |\[[\w-]+\.(models|training))", block.text) else _toml
    if block.language in ("", "sh") and commands.is_command(block.text):
        return _commands
    if block.language == "" and all(map(FORMULA.fullmatch, map(str.strip, block.lines))):
        return _formula
    return LANGUAGES.get(block.language, _unknown)


def _unknown(block: Block, project: Project, printed: Printed) -> None:
    raise AssertionError(f"nothing tests a block of {block.language!r} that begins with {block.lines[0]!r}")


def _directive(block: Block, project: Project, printed: Printed) -> None:
    """Check the name of a Sphinx directive. tests/test_docs_site.py builds all pages."""
    assert re.fullmatch(r"\{[\w:-]+\}.*", block.language), block.language


def _commands(block: Block, project: Project, printed: Printed) -> None:
    """Run commands, or parse those for other machines."""
    printed |= commands.check(block.text, project)


def _output(block: Block, project: Project, printed: Printed) -> None:
    """Run the command in the comment above an output, and check that it prints these lines in order, apart from numbers."""
    command = block.note("printed by") or ""
    if command not in printed:
        printed.update(commands.check(command, project))
    assert command in printed, f"{command} is not run by this test"
    lines = iter([shape(line) for line in (printed[command].out + printed[command].err).splitlines()])
    for line in block.lines:
        if line.strip() not in ("", "..."):
            assert shape(line) in lines, f"{command} prints no more such a line: {line}\n{printed[command].out}"


def shape(line: str) -> str:
    """Return a line without its numbers, and without parts that differ between machines."""
    line = re.sub(r"\S*/((?:perf_results|baselines)\b)", r"\1", line)
    line = re.sub(r"\d{8}T\d{6}Z-[0-9a-f]{6}", "SESSION", line)
    line = re.sub(r"(?<![\w.])[-+±]?\d[\d,.:]*(?:e[-+]?\d+)?", "N", line)
    return re.sub(r"─+", "─", re.sub(r"[ ]+", " ", line.strip()))


def _check_date(block: Block, project: Project, printed: Printed) -> None:
    """Check that a paragraph next to an output, which no command here can print, has its date."""
    assert SEEN.search(block.around), "an output that no command of this machine prints needs a date in the text beside it"


def _tested_elsewhere(block: Block, project: Project, printed: Printed) -> None:
    test = REPOSITORY / (block.note("tested by") or "")
    assert Path(block.page).name in test.read_text(), f"{test} does not read {block.page}"


def _picture(block: Block, project: Project, printed: Printed) -> None:
    """Check that a picture has arrows or branches."""
    assert re.search(r"-->|==>|[├└]──", block.text), "a picture has arrows or branches"


def _formula(block: Block, project: Project, printed: Printed) -> None:
    """Check that a formula is arithmetic of named terms."""
    for line in block.lines:
        if "::=" not in line:
            right = re.sub(r"\b(\w+)\((\w+)\)", "1", line.partition(" = ")[2]).replace(" x ", " * ")
            ast.parse(re.sub(r"[A-Za-z][\w/' .-]*?(?= [-*/] |\)|$)", "1", right.strip()), mode="eval")


def _python(block: Block, project: Project, printed: Printed) -> None:
    """Check names and imports of Python code. Train perf tests, call hooks, and run other code."""
    code = textwrap.dedent(block.text)
    if ROW.match(code):
        _row(block)
        return
    tree = ast.parse(code)
    given = block.note("given")
    _names_are_known(f"{given}\n{code}" if given else code)
    for module, name in _iterate_imports(tree):
        assert name is None or _has(module, name), f"{module} has no {name}"
    functions = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    named_so = re.match(r"# (\w+\.py)\n", code)
    file = f"perf_tests/{named_so[1] if named_so else 'test_snippet.py'}"
    if named_so or any(name.startswith("test_") for name in functions):
        (project.folder / file).write_text(code)
    if any(name.startswith("test_") for name in functions):
        ended = project.pytest(file, "--repeats=1", *(["--co"] if project.runs_programs(file) else ()))
    elif code.startswith("#") or any(isinstance(each, ast.ClassDef) for each in tree.body):
        return  # a file: of a program, which a test of its own runs, or of classes, which it would only define
    elif any(name.startswith("pytest_") for name in functions):
        conftest = project.folder / "perf_tests" / "conftest.py"
        before = conftest.read_text()
        conftest.write_text(f"{before}\n\n{code}")
        ended = project.pytest("perf_tests/test_mnist.py", "-k", "throughput")
        conftest.write_text(before)
    else:
        ended = project.python(f"{given or ''}\n{code}")
    assert ended.code == 0, ended.out + ended.err


ROW = re.compile(r"# (pytest_dtfperf/\S+\.py), above (\S+)\n")


def _row(block: Block) -> None:
    """Check the position of a new row. tests/test_adding.py adds it and tests it."""
    found = ROW.match(block.text)
    assert found is not None
    path, above = found.groups()
    assert re.search(rf"(?m)^ *{re.escape(above)}[ :=]", (REPOSITORY / path).read_text()), f"{path} has no {above}"


def _names_are_known(code: str) -> None:
    """Check that all names are defined, with ruff."""
    command = [find_ruff_bin(), "check", "--isolated", "--select=F", "--quiet", "--output-format=concise", "-"]
    ended = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _iterate_imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Yield the imports from this package and from the example package, as module and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pytest_dtfperf"):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _has(module: str, name: str) -> bool:
    """Return whether a module defines a name. Modules of training are parsed, because an import would load TensorFlow."""
    if not module.startswith("pytest_dtfperf.training."):
        return hasattr(importlib.import_module(module), name)
    path = REPOSITORY / f"{module.replace('.', '/')}.py"
    return any(name in _names(node) for node in ast.parse(path.read_text()).body)


def _names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _cluster(block: Block, project: Project, printed: Printed) -> None:
    """Check that the project's clusters.toml has the cluster and can be read."""
    tables = tomllib.loads(textwrap.dedent(block.text))
    read = named.load(project.clusters)
    assert tables.keys() <= read.keys()


def _toml(block: Block, project: Project, printed: Printed) -> None:
    """Check entry points of the example package, pytest's configuration, or variants of a comparison."""
    content = tomllib.loads(textwrap.dedent(block.text))
    if points := content.get("project", {}).get("entry-points"):
        theirs = tomllib.loads((WORKBENCH / "pyproject.toml").read_text())["project"]["entry-points"]
        assert points.keys() <= set(GROUPS)
        assert points.items() <= theirs.items(), "it is not what the example package has"
    elif options := content.get("tool", {}).get("pytest", {}).get("ini_options"):
        assert options.keys() <= {f"dtfperf_{option.name.replace('-', '_')}" for option in OPTIONS}
    elif all(isinstance(table, dict) and {*table} <= {*STACK_KEYS, *FIELDS} for table in content.values()):
        assert all(Variant.from_settings(name, table, name) for name, table in content.items())
    else:
        raise AssertionError("it is neither a cluster, nor entry points, nor options of pytest, nor variants")


def _ini(block: Block, project: Project, printed: Printed) -> None:
    known = {f"dtfperf_{option.name.replace('-', '_')}" for option in OPTIONS} | {"dtfperf_short_options", "addopts"}
    keys = set(re.findall(r"(?m)^(\w+) *=", block.text))
    assert keys
    assert keys <= known, f"{sorted(keys - known)} are no keys"


def _json(block: Block, project: Project, printed: Printed) -> None:
    json.loads(block.text)
    raise AssertionError("JSON needs a test of its own: name it in a comment, `tested by`")


def _yaml(block: Block, project: Project, printed: Printed) -> None:
    """Check a part of a workflow: its actions are pinned to a commit, and its commands can be parsed."""
    content = yaml.safe_load(textwrap.dedent(block.text))
    jobs = content if isinstance(content, list) else [step for job in content.values() for step in job.get("steps", ())]
    assert jobs
    for step in jobs:
        if "uses" in step:
            assert re.search(rf"uses: {re.escape(step['uses'])} # v\d+\.\d+\.\d+", block.text), f"{step['uses']} is not pinned"
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"])
        else:
            commands.understand(step["run"])


LANGUAGES: Mapping[str, Kind] = {
    "python": _python,
    "json": _json,
    "yaml": _yaml,
    "ini": _ini,
    "text": _check_date,
    "": _check_date,
}


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_are_known(page: str) -> None:
    """Each `dtfperf ...` in a sentence is an existing command with existing options."""
    problems = []
    for token in tokens(page):
        for child in token.children or ():
            words = " ".join(child.content.split())
            if child.type == "code_inline" and re.fullmatch(r"dtfperf [a-z].*", words):
                problems += [f"{page}:{(token.map or [0])[0] + 1}: {words}: {each}" for each in _unknown_words(words)]
    assert problems == []


def _unknown_words(words: str) -> Iterator[str]:
    arguments = words.split()[1:]
    known, options = commands.options_of(arguments)
    if not known:
        yield f"there is no command {arguments[0]}"
    for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", words):
        if option not in options and not {"nightly", "calibrate"} & set(known):
            yield f"it has no {option}"


CALLED = {"baseline": Baseline, "train": Train, "session": Session}
CALL = re.compile(rf"(?:{'|'.join(CALLED)})(?:\.\w+)?\(.*\)")


@pytest.mark.parametrize("page", PAGES)
def test_calls_in_sentences_can_be_made(page: str) -> None:
    """Each call of `train`, `baseline` and `session` in a sentence has a valid signature."""
    problems = []
    for token in tokens(page):
        for child in token.children or ():
            if child.type == "code_inline" and CALL.fullmatch(child.content):
                try:
                    written = re.sub(r"(?:, |(?<=\())\.\.\.\)$", ")", child.content)
                    _bind(ast.parse(written, mode="eval").body, in_full=written == child.content)
                except (AttributeError, SyntaxError, TypeError) as problem:
                    problems.append(f"{page}:{(token.map or [0])[0] + 1}: {child.content}: {problem}")
    assert problems == []


def _bind(call: ast.expr, *, in_full: bool) -> None:
    """Bind the arguments of a call. Raises `AttributeError` and `TypeError`, as Python does."""
    assert isinstance(call, ast.Call)
    named = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    assert isinstance(named, ast.Name)
    method = getattr(CALLED[named.id], call.func.attr if isinstance(call.func, ast.Attribute) else "__call__")
    signature = inspect.signature(method)
    words = {each.arg: None for each in call.keywords if each.arg}
    bind = signature.bind if in_full else signature.bind_partial
    bound = bind(*(() if inspect.ismethod(method) else (None,)), *call.args, **words).arguments
    more = set(bound.get("wanted", ())) | set(bound.get("common", ()))
    if named.id == "train" and (unknown := more - {each.name for each in fields(Spec)}):
        raise TypeError(f"no spec has {sorted(unknown)}")
