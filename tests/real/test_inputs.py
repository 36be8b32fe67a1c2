"""docs/inputs.md's own example of a producer: the program and the perf test, as they stand there."""

import os
import re
import sys
from pathlib import Path

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records
from tests.real.imported import forked

DOCUMENT = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text()
CLUSTERS = """
[local]
backend = "local"
alone = false
device = "cpu"

[local.training]
batch_size = 2
warmup_steps = 1
steps = 3
"""


def test_the_documents_example_runs(perf: PerfTests, tmp_path: Path) -> None:
    """A program that knows the wire format alone feeds the training, and what is recorded says which it was."""
    (perf.folder / "perf" / "clusters.toml").write_text(forked(CLUSTERS))
    (perf.folder / "perf" / "test_perf.py").unlink()
    program, source = (
        next(found for found in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL) if found.startswith(first))
        for first in ("#!", "# test_feed.py")
    )
    feed = tmp_path / "feed"
    feed.write_text(program)
    feed.chmod(0o755)
    perf.write(source.replace("/opt/feed", str(feed)), "test_feed.py")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # its python3 shall have pyzmq
    ended = perf.run("--repeats=1", PATH=path)
    assert ended.code == 0, ended.out
    ended.line("1 passed")
    (record,) = records(perf)
    assert record["spec"]["environment"] == [f"DTFPERF_ZMQ_PRODUCER={feed} --fast"]
    assert len(record["runs"][0]["loss"]) == 3
