"""Tests of docs/data-policy.json, the permissions that credentials need."""

import json
import os
import signal
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.staging import stage
from pytest_dtfperf.staging.transfer import PART_BYTES
from tests.clusters.ec2.cloud.policy import actions
from tests.plugin import zygote
from tests.s3 import NAME, PATIENCE_S, S3, amazon, s3

__all__ = ["amazon", "s3"]  # fixtures

POLICY = json.loads((Path(__file__).parents[2] / "docs" / "data-policy.json").read_text())
URL = f"s3://{NAME}/sets"


def test_policy_has_exactly_the_used_actions(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushing, also after a killed push, pulling and staging use exactly the actions of the policy, and none is refused."""
    user = s3.cloud.user(POLICY)
    before = len(s3.cloud.calls)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "big").write_bytes(bytes(PART_BYTES + 1))  # two parts
    with monkeypatch.context() as environment:
        for name, value in user.items():
            environment.setenv(name, value)
        push = ["data", "push", str(tmp_path / "set"), URL]
        hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/sets/big", skip=1)
        with zygote.start(["-m", zygote.COMMANDS, *push], tmp_path, {**os.environ, **zygote.SEARCH_PATH}) as killed:
            hang.wait_until_executed(PATIENCE_S)
            killed.send_signal(signal.SIGKILL)
        hang.release()
        for arguments in (push, ["data", "pull", URL, str(tmp_path / "back")]):
            ended = zygote.dtfperf(*arguments)
            assert ended.returncode == 0, ended.stderr
        config = ClusterConfig(name="local")
        with named.open_cluster(config).allocate(Resources(devices=1)) as allocation:
            stage.stage(URL, allocation, config, lambda words: None)
    used = {action for call in s3.cloud.calls[before:] if call.key_id == user["AWS_ACCESS_KEY_ID"] for action in actions(call)}

    assert s3.cloud.refused == []
    assert s3.list_unfinished_uploads() == []
    assert sorted(used) == sorted(action for statement in POLICY["Statement"] for action in statement["Action"])
