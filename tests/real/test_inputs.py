"""Test of the producer in docs/inputs.md."""

import os
import re
import sys
from pathlib import Path

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records
from tests.real.imported import use_forks

DOCUMENT = (Path(__file__).parents[2] / "docs" / "inputs.md").read_text()
CLUSTERS = """
[local]
backend = "local"
dedicated = false
device = "cpu"

[local.training]
batch_size = 2
warmup_steps = 1
steps = 3
"""


def test_producer_of_the_document_feeds_training(perf: PerfTests, tmp_path: Path) -> None:
    """The document's producer feeds a training, and the record has its command line."""
    (perf.folder / "perf" / "clusters.toml").write_text(use_forks(CLUSTERS))
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
