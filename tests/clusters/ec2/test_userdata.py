"""The user data of an instance, which it runs when it starts."""

import subprocess
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from pytest_dtfperf.clusters.ec2.contact import INSTANCE, READY, ROTATE, TIMER, make_cloud_config, make_keys

MOST_BYTES = 16_384  # that Amazon takes


def make_user_data(tmp_path: Path, minutes: int = 240) -> str:
    make_keys(tmp_path, "test")
    return make_cloud_config((tmp_path / "host").read_text(), (tmp_path / "host.pub").read_text(), minutes)


def test_user_data_is_valid(tmp_path: Path) -> None:
    """The user data is YAML with keys that cloud-init knows, and is short enough."""
    text = make_user_data(tmp_path)
    assert text.startswith("#cloud-config\n")
    assert yaml.safe_load(text).keys() == {"ssh_deletekeys", "ssh_keys", "write_files", "runcmd"}
    assert len(text.encode()) < MOST_BYTES


def test_host_key_is_the_runs_only(tmp_path: Path) -> None:
    """The image's host keys are deleted, and the injected one comes out of the YAML unchanged."""
    read = yaml.safe_load(make_user_data(tmp_path))
    assert read["ssh_deletekeys"] is True
    assert read["ssh_keys"]["ed25519_private"].strip() == (tmp_path / "host").read_text().strip()
    assert read["ssh_keys"]["ed25519_public"] == (tmp_path / "host.pub").read_text().strip()


def test_login_key_is_not_in_the_user_data(tmp_path: Path) -> None:
    """The key that lets us in never leaves this machine."""
    text = make_user_data(tmp_path)
    key = (tmp_path / "login").read_text().splitlines()[1:-1]
    assert not any(line in text for line in key[1:])  # the first line of all such keys is the same


def test_readiness_follows_the_timer(tmp_path: Path) -> None:
    """An instance is ready only after its timer for the end was set."""
    (command,) = yaml.safe_load(make_user_data(tmp_path, minutes=17))["runcmd"]
    assert command == ["sh", "-c", f"{TIMER} 17 && : >{READY}"]


def programs(tmp_path: Path) -> dict[str, str]:
    files = yaml.safe_load(make_user_data(tmp_path))["write_files"]
    assert {file["permissions"] for file in files} == {"0755"}
    return {file["path"]: file["content"] for file in files}


def test_written_programs_are_shell_scripts(tmp_path: Path) -> None:
    """The programs of the user data are valid for a plain sh."""
    found = programs(tmp_path)
    assert found.keys() == {ROTATE, TIMER}
    for content in found.values():
        subprocess.run(["sh", "-n"], input=content, text=True, check=True)


def test_timer_is_set_again_after_a_reboot(tmp_path: Path) -> None:
    """The timer is set again at a reboot for the remaining time, and not on an instance of a copied image."""
    instance = tmp_path / "instance"
    script = programs(tmp_path)[TIMER].replace(INSTANCE, str(instance))
    (tmp_path / "bin").mkdir()
    for name, does in (("shutdown", 'echo "$@"'), ("date", "echo $NOW")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run_timer(minutes_later: int, *arguments: str) -> str:
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NOW": str(1_800_000_000 + 60 * minutes_later)}
        argv = ["sh", "-c", script, "timer", *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    assert run_timer(0) == "", "cloud-init runs it before it has a limit, and in what was made from this machine's image"
    assert run_timer(0, "17") == "-h +17\n"
    assert [run_timer(later) for later in (0, 5, 17, 600)] == ["-h +17\n", "-h +12\n", "-h +0\n", "-h +0\n"]
    instance.rename(tmp_path / "of the image")
    assert run_timer(5) == ""
