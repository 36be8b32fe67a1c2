"""Test of the external command in docs/command.md with real training."""

import re
from pathlib import Path

from tests.plugin.conftest import COMMANDS_HERE, PerfTests
from tests.plugin.test_verdicts import records
from tests.real import imported

DOCUMENT = (Path(__file__).parents[2] / "docs" / "command.md").read_text()
# Workers that compute all the time have rates as different as their shares of a busy machine: one may have a core alone.
STEP = "            session.run(step)\n        seconds"
PAUSED_STEP = STEP.replace("\n", "\n            time.sleep(0.01)\n", 1)
assert DOCUMENT.count(STEP) == 1


def test_example_of_the_document_is_measured(perf: PerfTests) -> None:
    """The document's example with TensorFlow's own servers is measured by its perf test, with the mean of both rates."""
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    (perf.folder / "perf" / "test_perf.py").unlink()
    for name, source in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCUMENT, re.DOTALL):
        perf.write(source.replace(STEP, PAUSED_STEP), name)
    (command,) = re.findall(r"^    pytest perf_tests/(.*)$", DOCUMENT, re.MULTILINE)
    ended = perf.run(*command.split()[1:], "--steps=200", "--repeats=1", PATH=imported.path())
    assert ended.code == 0, ended.out
    ended.line("1 undecided")
    (record,) = records(perf)
    (run,) = record["runs"]
    first, second = (float(rate) for rate in run["reported_rates"].values())
    assert run["images_per_sec"] == (first + second) / 2
    assert set(run["peak_rss_bytes"]) == {"ps:0", "worker:0", "worker:1"}
