"""Instances that are launched, and what they would cost."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.ec2 import where
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import DONE
from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import ClusterFileError, UsageError
from pytest_dtfperf.records.session import new_session_id

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.ec2.account import Account


def up(args: argparse.Namespace) -> int:
    config = where.ec2_cluster(args)
    if not config.backend_keys.get("keep"):
        raise UsageError(
            f"sessions of cluster {config.name!r} would not use what is launched now: say keep = true in its table, or let "
            f"`pytest --cluster={config.name}` launch and end its own"
        )
    from pytest_dtfperf.clusters.ec2 import costs
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.cluster import Ec2

    config, count = _sized(config, Account.open(config), args.gpus)
    devices = count * (config.devices_per_host or 1)
    cluster = Ec2(config, ask=(lambda question: True) if args.yes else costs.ask_at_terminal)
    with cluster.allocate(Resources(devices, session=new_session_id(), on_status=where.print_status)) as allocation:
        hosts = [{"name": host.name, "address": host.address} for host in allocation.hosts]
    if args.json:
        print_json({"cluster": config.name, "hosts": hosts})
    return DONE


def cost(args: argparse.Namespace) -> int:
    config = where.ec2_cluster(args)
    from pytest_dtfperf.clusters.ec2 import costs, instance_types
    from pytest_dtfperf.clusters.ec2.account import Account
    from pytest_dtfperf.clusters.ec2.costs import CostEstimate
    from pytest_dtfperf.clusters.ec2.keys import DEFAULT_MAX_HOURS

    backend_keys = config.backend_keys
    account = Account.open(config)
    config, count = _sized(config, account, args.gpus)
    offer = instance_types.get_offer(account, backend_keys["instance_type"])
    if problem := instance_types.find_problem(offer, backend_keys):
        raise ClusterFileError(f"cluster {config.name!r}: {problem}")
    spot = bool(backend_keys.get("spot"))
    price = costs.get_price(account, offer, spot, given=backend_keys.get("usd_per_hour"))
    max_hours, limit = backend_keys.get("max_hours", DEFAULT_MAX_HOURS), backend_keys.get("max_usd")
    estimate = CostEstimate(str(account), offer.instance_type, count, max_hours, price, spot)
    counts = instance_types.find_quota(offer.instance_type, spot=spot)
    most = instance_types.get_quota_vcpus(account, counts) if counts else None
    if args.json:
        of_type = {name: getattr(offer, name) for name in ("gpus", "vcpus", "baseline_gbps", "peak_gbps")}
        of_price = {"spot": spot, "usd_per_hour": price.usd, "source": f"{price.source}, {price.date}"}
        of_limits = {"max_hours": max_hours, "worst_usd": estimate.worst_usd, "max_usd": limit, "quota_vcpus": most}
        print_json({"instance_type": offer.instance_type, "count": count, **of_type, **of_price, **of_limits})
        return DONE
    print(offer)
    if offer.bursts:
        print(f"The network bursts to {offer.peak_gbps:g} Gbit/s while credits last: how fast depends on what ran before.")
    print(estimate)
    if limit:
        print(f"max_usd = {limit:g} in clusters.toml")
    if counts and most is not None:
        enough = "enough, if nothing else runs" if most >= count * offer.vcpus else "too few"
        print(f"{count * offer.vcpus} vCPUs of {most:g} in quota {counts.name!r} ({counts.code}): {enough}")
    return DONE


def _sized(config: ClusterConfig, account: "Account", gpus: int | None) -> tuple[ClusterConfig, int]:
    """The cluster with the devices per host that its type has, and how many instances are wanted."""
    from pytest_dtfperf.clusters.ec2 import instance_types

    offer = instance_types.get_offer(account, config.backend_keys["instance_type"])
    on_each = config.devices_per_host or (0 if config.device == "cpu" else offer.gpus) or 1
    config = replace(config, devices_per_host=on_each)
    if gpus is None:
        return config, config.max_hosts or 1
    if gpus < 1:
        raise UsageError(f"--gpus must be at least 1, not {gpus}")
    return config, capacity.require_hosts(config, Resources(gpus), "count")
