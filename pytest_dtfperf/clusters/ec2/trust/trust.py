"""Whom ssh believes: the key that this run gave its instances, and after the first login only the one each made itself."""

import subprocess
from pathlib import Path

from pytest_dtfperf.clusters.ec2.launch import launched
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.node.files import replacing


def make_keys(folder: Path, name: str) -> None:
    """Both pairs of a run: they are on disk before anything is asked for, so that a repeated request is the same."""
    for kind in (launched.LOGIN_KEY, launched.HOST_KEY):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}-{kind}", "-f", str(folder / kind)]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
        except FileNotFoundError:
            raise AllocationError(
                "there is no ssh-keygen on this machine: install the OpenSSH client (Debian: openssh-client)"
            ) from None
        except subprocess.CalledProcessError as failed:
            raise AllocationError(f"ssh-keygen cannot make a key in {folder}: {failed.stderr.strip()}") from failed


def read_injected_key(folder: Path) -> str:
    """The key that every instance of the run has when it starts."""
    return (folder / f"{launched.HOST_KEY}.pub").read_text()


def trust_keys(folder: Path, instance_id: str, *keys: str) -> None:
    """Only these keys are an instance's, from now on. Raises `AllocationError`."""
    lines = dict.fromkeys(f"{instance_id} {' '.join(key.split()[:2])}\n" for key in keys)
    path = launched.known_hosts_path(folder, instance_id)
    try:
        with replacing(path) as file:
            file.write("".join(lines).encode())
    except OSError as exc:
        raise AllocationError(f"{path} cannot be written: {exc.strerror}; make room on that disk") from exc


def is_public_key(line: str) -> bool:
    """Whether that is a public key as we make them, and nothing else."""
    words = line.split()
    return len(words) >= 2 and words[0] == "ssh-ed25519" and words[1].startswith("AAAA")
