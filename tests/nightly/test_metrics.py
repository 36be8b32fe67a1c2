"""Metrics of a night: a file that node_exporter reads, and a real HTTP server in the place of a Pushgateway."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.nightly.night import NightMetrics
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.metrics_targets import parse_target, publish_metrics
from tests.nightly.test_notify import webhook
from tests.records.samples import measurement, spec

PASSWORD = "sEc:ReT/1"
NIGHT = NightMetrics("daint", exit_code=1, losses=2, session=None).format()


def test_file_has_the_night_and_its_session(tmp_path: Path) -> None:
    """The file has the exit code, the losses and the rates, readable for other users, and nothing is left beside it."""
    folder = SessionFolder.create(tmp_path / "results", cluster="daint", command=["pytest"], versions={})
    folder.add("t.py::test_a", measurement(spec(gpus=2), [10.0, 10.0]))
    path = tmp_path / "dtfperf.prom"
    path.write_text("of the last night")
    lines = publish_metrics([parse_target(str(path))], NightMetrics("daint", 1, 2, folder.path).format(), "daint")
    assert lines == [f"metrics in {path}"]
    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    values = {name: family.samples[0].value for name, family in families.items()}
    assert (values["dtfperf_nightly_exit_code"], values["dtfperf_nightly_losses"]) == (1, 2)
    assert values["dtfperf_rate_images_per_second"] == 10.0
    assert {sample.labels["cluster"] for family in families.values() for sample in family.samples} == {"daint"}
    assert path.stat().st_mode & 0o044 == 0o044
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dtfperf.prom", "results"]


def test_pushgateway_gets_a_group_of_the_cluster() -> None:
    """The group of the cluster is replaced, below the path of the gateway, with the login of the URL as a header."""
    with webhook() as server:
        url = f"http://me:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{server.server_port}/gateway/"
        lines = publish_metrics([parse_target(url)], NIGHT, "daint")
    ((path, headers, content),) = server.put
    assert path == "/gateway/metrics/job/dtfperf/cluster/daint"
    assert headers["Authorization"] == f"Basic {b64encode(f'me:{PASSWORD}'.encode()).decode()}"
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert {family.name for family in text_string_to_metric_families(content)} == {
        "dtfperf_nightly_exit_code",
        "dtfperf_nightly_ended_timestamp_seconds",
        "dtfperf_nightly_losses",
    }
    assert lines == ["metrics in 127.0.0.1"]


@pytest.mark.parametrize(
    ("codes", "tries", "line"),
    [
        ((503, 429), 3, "metrics in 127.0.0.1"),
        ((400,), 1, "no metrics in 127.0.0.1: HTTP status 400"),
        ((500, 500, 500), 3, "no metrics in 127.0.0.1: HTTP status 500, 3 times"),
    ],
    ids=["busy for a while", "refused", "broken"],
)
def test_pushgateway_is_tried_again(codes: Sequence[int], tries: int, line: str) -> None:
    """A gateway that may take them later is tried three times, and each end is a line without the login."""
    with webhook(*codes) as server:
        lines = publish_metrics([parse_target(f"http://me:x@127.0.0.1:{server.server_port}")], NIGHT, "daint", pause_s=0.0)
    assert len(server.put) == tries
    assert lines == [line]


def test_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A folder in its place is a line, and the other targets get the metrics."""
    (tmp_path / "a.prom").mkdir()
    lines = publish_metrics([parse_target(str(tmp_path / name)) for name in ("a.prom", "b.prom")], NIGHT, "daint")
    assert lines[0].startswith(f"no metrics in {tmp_path}/a.prom: ")
    assert lines[1] == f"metrics in {tmp_path}/b.prom"


@pytest.mark.parametrize(
    "text",
    ["", "metrics.txt", "/no/such/folder/a.prom", "ftp://h", "https://", "https://h:port", "https://h/?a=b", "https://h/ä"],
)
def test_other_target_is_refused(text: str) -> None:
    """Only a file that node_exporter would read, and the address of a gateway, are targets."""
    with pytest.raises(UsageError, match=r"--metrics takes a file \*\.prom"):
        parse_target(text)


def test_refusal_has_no_password() -> None:
    """A mistyped URL is not repeated."""
    with pytest.raises(UsageError) as raised:
        parse_target(f"htps://me:{PASSWORD}@gateway")
    assert PASSWORD not in str(raised.value)
