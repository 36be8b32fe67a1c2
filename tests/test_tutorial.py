"""Tests of the tutorial: its file is written and its commands are run, literally, with the wheel alone."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests import campaign
from tests.plugin.conftest import WITHOUT, WITHOUT_DRAWING, PerfTests

REPOSITORY = Path(__file__).parents[1]
TUTORIAL = (REPOSITORY / "docs" / "tutorial.md").read_text()
ENDS_S = 600.0

# In campaigns it trains and draws; otherwise training takes no time, and what sleeps sleeps all the same.
TOYS = """
[local]
backend = "local"
dedicated = false
entry = "tests.plugin.toy_training:run"
devices_per_host = 2
device = "cpu"
"""


def test_tutorial_commands_end_as_described(wheel: Path, tmp_path: Path) -> None:
    """The commands end with no baseline, an accepted one, a pass, and a regression with exit code 1 and its cause, as in the
    text."""
    site, project = tmp_path / "site", tmp_path / "project"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (project / "perf_tests").mkdir(parents=True)
    (test,) = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (file,) = re.findall(r"write `(perf_tests/.*?)`", TUTORIAL)
    (project / file).write_text(test)
    if not campaign.WHOLE:
        (project / "perf_tests" / "clusters.toml").write_text(TOYS)

    ended = [run(line, project, site) for line in "".join(re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)).splitlines()]
    assert [each.returncode for each in ended] == [0, 0, 0, 1, 0], [each.stdout for each in ended]
    new, accepted, passed, failed, listed = (each.stdout for each in ended)
    assert "NO_BASELINE" in new
    assert "1 undecided" in new
    assert re.search(r"mnist b64 gpus=2 num_ps=1 parameter_server: new, \d", accepted)
    assert "PASSED" in passed
    assert "REGRESSED: mnist b64 gpus=2 num_ps=1 parameter_server\n  measured" in failed
    assert "worker:1 slept 0.2 s in every step" in failed
    if campaign.WHOLE:
        assert re.search(r"ms   worker:1 \(.*\) sleeps for \d+ ms before it asks for a step", failed)
    assert re.findall("1 (NO_BASELINE|PASSED|REGRESSED)", listed) == ["NO_BASELINE", "NO_BASELINE", "PASSED", "REGRESSED"]


def run(command: str, project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as the tutorial has it, with programs of this Python and the package of the wheel."""
    environ = PerfTests(project).environ()
    paths = [str(site), str(REPOSITORY)]  # the latter for the toys
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "PYTHONPATH": ":".join(paths),
        "XDG_RUNTIME_DIR": str(project.parent),
        "COLUMNS": "120",
    }
    if not campaign.WHOLE:  # and draws and explains nothing: toys have no causes
        environ["PYTEST_ADDOPTS"] = " ".join([*WITHOUT, *WITHOUT_DRAWING, "-o dtfperf_explain=never"])
    return subprocess.run(
        ["sh", "-c", command], cwd=project, env=environ, capture_output=True, text=True, timeout=ENDS_S, check=False
    )
