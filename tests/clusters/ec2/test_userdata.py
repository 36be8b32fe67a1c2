"""What an instance does when it starts."""

import subprocess
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from pytest_dtfperf.clusters.ec2.contact import INSTANCE, READY, ROTATE, TIMER, make_cloud_config, make_keys

MOST_BYTES = 16_384  # that Amazon takes


def made(tmp_path: Path, minutes: int = 240) -> str:
    make_keys(tmp_path, "test")
    return make_cloud_config((tmp_path / "host").read_text(), (tmp_path / "host.pub").read_text(), minutes)


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
    assert command == ["sh", "-c", f"{TIMER} 17 && : >{READY}"]


def programs(tmp_path: Path) -> dict[str, str]:
    files = yaml.safe_load(made(tmp_path))["write_files"]
    assert {file["permissions"] for file in files} == {"0755"}
    return {file["path"]: file["content"] for file in files}


def test_what_is_written_to_the_instance_are_shell_scripts(tmp_path: Path) -> None:
    """They are understood by a plain sh."""
    found = programs(tmp_path)
    assert found.keys() == {ROTATE, TIMER}
    for content in found.values():
        subprocess.run(["sh", "-n"], input=content, text=True, check=True)


def test_its_end_is_as_certain_after_a_reboot(tmp_path: Path) -> None:
    """At a reboot a machine forgets when it was to shut down, and is told again: in what is left, at once where nothing is."""
    instance = tmp_path / "instance"
    script = programs(tmp_path)[TIMER].replace(INSTANCE, str(instance))
    (tmp_path / "bin").mkdir()
    for name, does in (("shutdown", 'echo "$@"'), ("date", "echo $NOW")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def told(minutes_later: int, *arguments: str) -> str:
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "NOW": str(1_800_000_000 + 60 * minutes_later)}
        argv = ["sh", "-c", script, "timer", *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    assert told(0) == "", "cloud-init runs it before it is told anything, and in what was made from this machine's image"
    assert told(0, "17") == "-h +17\n"
    assert [told(later) for later in (0, 5, 17, 600)] == ["-h +17\n", "-h +12\n", "-h +0\n", "-h +0\n"]
    instance.rename(tmp_path / "of the image")
    assert told(5) == ""
