"""Instances that were launched, as ssh reaches them."""

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_dtfperf.clusters.ec2.run.instances import Instance
from pytest_dtfperf.clusters.ec2.run.plan import LaunchPlan
from pytest_dtfperf.clusters.ssh.endpoint import Endpoint

LOGIN_KEY, HOST_KEY = "login", "host"  # the keys of a run, in its folder: who logs in, and whom the first login trusts


def known_hosts_path(folder: Path, instance_id: str) -> Path:
    """A file of its own per instance: they are first met side by side."""
    return folder / f"known_hosts.{instance_id}"


def make_endpoint(plan: LaunchPlan, folder: Path, instance: Instance) -> Endpoint:
    """One instance. Its own id is the name its key is kept under: addresses are given to others after it."""
    address = instance.public if plan.public else instance.private
    options = (
        *("-F", os.devnull),  # nothing that the user's files say of addresses like this one
        *_option(f'IdentityFile="{_escape_percent(folder / LOGIN_KEY)}"'),
        *("-p", str(plan.port)),
        *_option("IdentitiesOnly=yes"),
        *_option("IdentityAgent=none"),
        *_option(f"HostKeyAlias={instance.id}"),
        *_option(f'UserKnownHostsFile="{_escape_percent(known_hosts_path(folder, instance.id))}"'),
        *_option(f"GlobalKnownHostsFile={os.devnull}"),
        *_option("HostKeyAlgorithms=ssh-ed25519"),
        *_option("CheckHostIP=no"),
    )
    return Endpoint(instance.id, f"{plan.user}@{address}", instance.private, options)


def make_endpoints(plan: LaunchPlan, folder: Path, instances: Sequence[Instance]) -> list[Endpoint]:
    """In the order of their launch."""
    return [make_endpoint(plan, folder, each) for each in sorted(instances, key=lambda each: each.index)]


def _escape_percent(path: Path) -> str:
    """ssh takes what follows a % for something of its own."""
    return str(path).replace("%", "%%")


def _option(option: str) -> tuple[str, str]:
    return "-o", option
