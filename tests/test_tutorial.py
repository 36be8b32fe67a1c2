"""The tutorial, as a newcomer follows it: its file is written and its commands are run, literally, with the wheel alone."""

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
alone = false
entry = "tests.plugin.toy_training:run"
devices_per_host = 2
device = "cpu"
"""


def test_following_it_leads_where_it_says(wheel: Path, tmp_path: Path) -> None:
    """Nothing to compare with, accepted, passed, and red with exit code 1 and its cause, as the text shows."""
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
    """As typed there, with this Python's programs, and the package of the wheel."""
    environ = PerfTests(project).environ()
    paths = [str(site), str(REPOSITORY)]  # the latter for the toys
    environ |= {
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "PYTHONPATH": ":".join(paths),
        "XDG_RUNTIME_DIR": str(project.parent),
        "COLUMNS": "120",
    }
    if not campaign.WHOLE:  # and draws nothing
        environ["PYTEST_ADDOPTS"] = " ".join([*WITHOUT, *WITHOUT_DRAWING])
    return subprocess.run(
        ["sh", "-c", command], cwd=project, env=environ, capture_output=True, text=True, timeout=ENDS_S, check=False
    )
