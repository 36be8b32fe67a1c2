"""What README and docs say is true: commands, options, examples, links."""

import re
import subprocess
from pathlib import Path

import pytest

from pytest_dtfperf.plugin.options import OPTIONS
from tests.plugin.conftest import PerfTests, perf_tests_in

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((REPOSITORY / "docs").glob("*.md")))]


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    """Perf tests whose training takes no time."""
    return perf_tests_in(tmp_path)


def test_every_option_is_in_the_readme_as_it_is() -> None:
    """The README's table of options is the plugin's own."""
    rows = [
        f"| `--{option.name}{'[=' if option.bare else ' '}{option.metavar}{']' if option.bare else ''}` |" for option in OPTIONS
    ]
    for row, option in zip(rows, OPTIONS, strict=True):
        line = next((line for line in README.replace("\\|", "|").splitlines() if line.startswith(row)), "")
        assert option.help in line, f"{row} is missing or says something else"


def test_the_readmes_perf_test_runs(perf: PerfTests) -> None:
    """The perf test in the README is collected, trains and passes as it stands there."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    perf.write(example)
    ended = perf.run()
    assert ended.code == 0, ended.out
    ended.line("1 passed, 4 undecided")


def test_the_readmes_perf_test_is_ours() -> None:
    """The README's example is what stands in perf_tests/."""
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert example.strip() in (REPOSITORY / "perf_tests" / "test_inception3.py").read_text()


@pytest.mark.parametrize("command", re.findall(r"^    (pytest perf_tests.*?)(?:  +#.*)?$", README, re.MULTILINE))
def test_the_readmes_commands_are_understood(command: str) -> None:
    """Every pytest command in the README collects the perf tests of this repository."""
    program, *arguments = command.split()
    assert program == "pytest"
    ended = PerfTests(REPOSITORY).command(*arguments, "--co", "-q")
    found = subprocess.run(
        ended, cwd=REPOSITORY, env=PerfTests(REPOSITORY).environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_inception3.py::test_throughput" in found.stdout


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_files_exist(name: str) -> None:
    """Every relative link leads to a file, and every path of ours that is written in code style exists."""
    text = (REPOSITORY / name).read_text()
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if "//" not in link]
    folders = (REPOSITORY / name).parent, REPOSITORY, REPOSITORY / "pytest_dtfperf"
    paths = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|yml))`", text)
    missing = [link for link in links if not ((REPOSITORY / name).parent / link).exists()]
    missing += [path for path in paths if not any((folder / path).exists() for folder in folders)]
    assert missing == []


def test_make_targets_exist() -> None:
    """The two commands of the README's first screen are targets of the Makefile."""
    makefile = (REPOSITORY / "Makefile").read_text()
    first_screen = "\n".join(README.splitlines()[:15])
    for target in re.findall(r"^    make (\w+)", first_screen, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert "make perf" in first_screen
    assert "make test" in first_screen
