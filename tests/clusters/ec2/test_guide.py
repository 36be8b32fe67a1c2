"""The commands, names and examples of docs/ec2.md are valid."""

import re
import shlex
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.ec2 import costs, plan
from pytest_dtfperf.clusters.ec2 import keys as keys

GUIDE = (Path(__file__).parents[3] / "docs" / "ec2.md").read_text()
COMMANDS = re.findall(r"^ +dtfperf (ec2 .*?)(?:  +#.*)?$", GUIDE, re.MULTILINE)


def test_cluster_of_the_guide_is_read(tmp_path: Path) -> None:
    """The guide's cluster is a valid cluster file."""
    (example,) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    file = tmp_path / "clusters.toml"
    file.write_text(re.sub(r"(?m)^ +", "", example))

    config = named.load(file)["g5"]

    assert (config.backend, config.backend_keys["max_usd"]) == ("ec2", 20)


def test_the_guide_has_all_commands() -> None:
    """Each of the commands is shown in use."""
    assert {shlex.split(command)[1] for command in COMMANDS} == {"up", "status", "ssh", "down", "reap", "cost"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_guide_are_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No command in the guide has an option that there is not."""
    with pytest.raises(SystemExit) as end:
        main([*shlex.split(command), "--help"])

    assert end.value.code == 0
    output = capsys.readouterr().out
    for option in re.findall(r"--[a-z-]+", command):
        assert option in output


def test_names_of_the_guide_are_in_the_code() -> None:
    """Tags, variables and keys that the guide names are those of the code."""
    assert set(re.findall(r"`(dtfperf:\w+)`", GUIDE)) <= {
        plan.MANAGED, plan.RUN, plan.EXPIRES, plan.OWNER, plan.USER,
    }  # fmt: skip
    assert set(re.findall(r"`?(DTFPERF_\w+)", GUIDE)) == {costs.VARIABLE}
    assert set(re.findall(r"`([a-z_]+) = ", GUIDE)) <= {*keys.KEYS, *named.KEYS}
