"""An instance's security groups as rules of nftables for its machine. Outgoing traffic is free."""

from collections.abc import Iterator

from moto.ec2.models.instances import Instance
from moto.ec2.models.security_groups import SecurityGroup

from tests.clusters.ec2.cloud import world

_TABLE = """
table inet doors
delete table inet doors
table inet doors {{
    chain input {{
        type filter hook input priority 0; policy drop;
        iif lo accept
        ct state established,related accept
        {rules}
    }}
}}
"""


def rules(instance: Instance) -> str:
    """Return rules for `nft -f`, which replace earlier ones."""
    groups = {g.id: g for nic in instance.nics.values() for g in nic.group_set}
    return _TABLE.format(rules="\n        ".join(line for group in groups.values() for line in _list_rules(group)))


def _list_rules(group: SecurityGroup) -> Iterator[str]:
    for rule in group.ingress_rules:
        ports = "" if rule.from_port is None else f"{rule.ip_protocol} dport {rule.from_port}-{rule.to_port} "
        sources = [rule.cidr_ipv4] if rule.cidr_ipv4 else []
        if member_of := rule.source_group.get("GroupId"):
            sources += _members(member_of)
        for source in sources:
            yield f"ip saddr {source} {ports}accept"


def _members(group_id: str) -> list[str]:
    """The private addresses of the instances in a group."""
    alive = [i for i in world.get_world().instances() if i.state in ("pending", "running")]
    nics = [nic for i in alive for nic in i.nics.values() if group_id in {g.id for g in nic.group_set}]
    return [str(nic.private_ip_address) for nic in nics]
