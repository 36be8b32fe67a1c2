"""What an instance does when it starts."""

import subprocess
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from pytest_dtfperf.clusters.ec2.launch.userdata import READY, ROTATE, cloud_config
from pytest_dtfperf.clusters.ec2.trust.trust import make_keys

MOST_BYTES = 16_384  # that Amazon takes


def made(tmp_path: Path, minutes: int = 240) -> str:
    make_keys(tmp_path, "test")
    return cloud_config((tmp_path / "host").read_text(), (tmp_path / "host.pub").read_text(), minutes)


def test_cloud_init_reads_it(tmp_path: Path) -> None:
    """It is YAML with nothing in it but what cloud-init knows, and short enough."""
    text = made(tmp_path)
    assert text.startswith("#cloud-config\n")
    assert yaml.safe_load(text).keys() == {"ssh_deletekeys", "ssh_keys", "write_files", "runcmd"}
    assert len(text.encode()) < MOST_BYTES


def test_the_instance_has_this_runs_host_key_and_no_other(tmp_path: Path) -> None:
    """Keys that are baked into the image go; the one that is injected comes out of the YAML as it went in."""
    read = yaml.safe_load(made(tmp_path))
    assert read["ssh_deletekeys"] is True
    assert read["ssh_keys"]["ed25519_private"].strip() == (tmp_path / "host").read_text().strip()
    assert read["ssh_keys"]["ed25519_public"] == (tmp_path / "host.pub").read_text().strip()


def test_who_logs_in_is_no_secret_of_the_instance(tmp_path: Path) -> None:
    """The key that lets us in never leaves this machine."""
    text = made(tmp_path)
    key = (tmp_path / "login").read_text().splitlines()[1:-1]
    assert not any(line in text for line in key[1:])  # the first line of all such keys is the same


def test_it_is_ready_only_when_its_end_is_certain(tmp_path: Path) -> None:
    """The sign of readiness comes after the timer, and not at all where there is none."""
    (command,) = yaml.safe_load(made(tmp_path, minutes=17))["runcmd"]
    assert command == ["sh", "-c", f"shutdown -h +17 && : >{READY}"]


def test_the_program_that_makes_a_new_key_is_a_shell_script(tmp_path: Path) -> None:
    """What is written to the instance is understood by a plain sh."""
    (file,) = yaml.safe_load(made(tmp_path))["write_files"]
    assert (file["path"], file["permissions"]) == (ROTATE, "0755")
    subprocess.run(["sh", "-n"], input=file["content"], text=True, check=True)
