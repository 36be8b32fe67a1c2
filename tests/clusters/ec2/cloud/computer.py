"""One instance as a real machine: its addresses, its user, its disk's cloud-init, its metadata, its security groups."""

import shlex
import sys
from pathlib import Path

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Instance

from tests.clusters.ec2.cloud import cloudinit, doors, metadata
from tests.machines.machine import Machine
from tests.machines.network import Network

# A "minute" is so many seconds. The machine's first process takes SIGTERM for being switched off.
_SHUTDOWN = """#!/bin/sh
minutes=0
for argument in "$@"; do
    case "$argument" in
        +*) minutes=${argument#+} ;;
        -c) kill "$(cat /run/shutdown.pid)"; exit ;;
    esac
done
(
    trap - TERM
    sleep "$(awk "BEGIN { print $minutes * MINUTE_S }")"
    kill -TERM 1
) </dev/null >/dev/null 2>&1 &
echo $! >/run/shutdown.pid
echo "$minutes" >/run/shutdown.minutes
"""


class Computer(Machine):
    """Up from `power_on` to `close`; what its instance is, it is."""

    def __init__(
        self, instance: Instance, network: Network, *, user: str, minute_s: float, stranger: bool, gpus: int | None
    ) -> None:
        """`stranger`: its host key is not the one that its user data gives it."""
        self.instance = instance
        self._login = user
        init = cloudinit.parse_user_data(instance.user_data.decode() if instance.user_data else "")
        addresses = [a for a in (instance.public_ip, instance.private_ip) if a]
        key = instance.ec2_backend.key_pairs.get(instance.key_name)
        super().__init__(
            instance.id,
            network,
            [f"{address}/24" for address in addresses],
            authorized=[key.public_key.strip()] if key else [],
            programs={"nvidia-smi": _nvidia_smi(_gpus(instance) if gpus is None else gpus)},
            overlays=("/etc", "/usr", "/var", "/root"),
            sshd=("PidFile /run/sshd.pid", "PermitRootLogin no"),
        )
        self._before = self._start(instance, init, minute_s)
        if init.host_key and not stranger:
            private, public = init.host_key
            (self.folder / "host_key").write_text(private if private.endswith("\n") else f"{private}\n")
            (self.folder / "host_key.pub").write_text(f"{public.strip()}\n")
        self._write_metadata(instance)
        (self.folder / "rules.nft").write_text(doors.rules(instance))

    def _listens(self) -> bool:
        """Return whether its sshd runs; its security groups may refuse a connection from this process."""
        return self.poll() is None and (self.files / "run/sshd.pid").exists()

    def _choose_user(self) -> str:
        return self._login

    @property
    def console(self) -> str:
        """Return the output of its start."""
        output = self.folder / "boot.txt"
        return output.read_text() if output.exists() else ""

    def end(self) -> None:
        """End everything on it, which connected programs notice."""
        if self._shell:
            self._end()

    def set_doors(self) -> None:
        """Apply its security groups after a change."""
        self.run("nft", "-f", "-", text=doors.rules(self.instance))

    def give_notice(self, notice: str) -> None:
        """Show the notice of a spot interruption in its metadata."""
        (self.folder / "metadata/latest/meta-data/spot").mkdir()
        (self.folder / "metadata/latest/meta-data/spot/instance-action").write_text(notice)

    def _start(self, instance: Instance, init: cloudinit.Init, minute_s: float) -> str:
        shutdown = shlex.quote(_SHUTDOWN.replace("MINUTE_S", str(minute_s)))
        python = shlex.quote(sys.executable)
        tokens = instance.metadata_options.http_tokens
        return f"""
chmod a+x /root # Python may be below it
for name in shutdown poweroff halt; do
    rm -f /usr/sbin/$name # a link to systemctl
    printf %s {shutdown} >/usr/local/sbin/$name
    chmod 755 /usr/local/sbin/$name
done
ip address add {metadata.ADDRESS}/32 dev lo
{python} -I -S {shlex.quote(metadata.__file__)} "$PWD/metadata" {tokens} </dev/null >/dev/null 2>>metadata.log &
nft -f rules.nft
{cloudinit.script(init, self._login, str(self.home))}
"""

    def _write_metadata(self, instance: Instance) -> None:
        output = {
            "instance-id": instance.id,
            "instance-type": instance.instance_type,
            "ami-id": instance.image_id,
            "ami-launch-index": str(instance.ami_launch_index),
            "instance-life-cycle": instance.lifecycle or "on-demand",
            "local-ipv4": instance.private_ip,
            "public-ipv4": instance.public_ip,
            "placement/availability-zone": instance.placement.zone,
        }
        latest = self.folder / "metadata/latest"
        for name, value in output.items():
            if value:
                _write(latest / "meta-data" / name, value)
        if instance.user_data:
            _write(latest / "user-data", instance.user_data.decode())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _gpus(instance: Instance) -> int:
    info = INSTANCE_TYPES[instance.instance_type].get("GpuInfo", {})
    return sum(gpu["Count"] for gpu in info.get("Gpus", []))


def _nvidia_smi(gpus: int) -> str | None:
    """Return a program that prints GPUs like `nvidia-smi --list-gpus`, or None without GPUs."""
    lines = "".join(f"GPU {i}: Pretend GPU (UUID: GPU-{i:08x})\n" for i in range(gpus))
    return f"#!/bin/sh\nprintf %s {shlex.quote(lines)}\n" if gpus else None
