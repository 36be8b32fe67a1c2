"""Placement groups, which moto lacks, and security groups that cannot be deleted while they are in use."""

import time
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses.security_groups import SecurityGroups

from tests.clusters.ec2.cloud import world
from tests.clusters.ec2.cloud.filters import passes


class Groups(SecurityGroups):
    def create_placement_group(self) -> ActionResult:
        key = self._key()
        self.error_on_dryrun()
        name = self._get_param("GroupName")
        if key in world.get_world().placement_groups:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        tags = self._parse_tag_specification("placement-group").get("placement-group", {})
        group: dict[str, Any] = {
            "GroupName": name,
            "GroupId": f"pg-{next(world.get_world().ids):017x}",
            "State": "available",
            "Strategy": self._get_param("Strategy"),
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }
        world.get_world().placement_groups[key] = group
        return ActionResult({"PlacementGroup": group})

    def describe_placement_groups(self) -> ActionResult:
        here = {k: g for k, g in world.get_world().placement_groups.items() if k.startswith(f"{self.region}/")}
        names = self._get_param("GroupNames", [])
        for name in names:
            self._find(name)
        wanted = [g for g in here.values() if not names or g["GroupName"] in names]
        filters = self._filters_from_querystring()
        return ActionResult({"PlacementGroups": [g for g in wanted if passes(g, filters, FILTERS)]})

    def delete_placement_group(self) -> EmptyResult:
        name = self._get_param("GroupName")
        self._find(name)
        self.error_on_dryrun()
        members = [i for i in world.get_world().instances() if i.placement.group_name == name and i.state != "terminated"]
        if members and not world.get_world().blind_calls:
            message = f"The placement group '{name}' is in use and may not be deleted."
            raise EC2ClientError("InvalidPlacementGroup.InUse", message)
        del world.get_world().placement_groups[self._key()]
        return EmptyResult()

    def delete_security_group(self) -> ActionResult:
        group_id = self._get_param("GroupId")
        if self._is_held() or any(
            group_id in {g.id for g in nic.group_set} for i in self._list_holders() for nic in i.nics.values()
        ):
            raise EC2ClientError("DependencyViolation", f"resource {group_id} has a dependent object")
        return super().delete_security_group()

    def authorize_security_group_ingress(self) -> ActionResult:
        return _apply_new_rules(super().authorize_security_group_ingress())

    def revoke_security_group_ingress(self) -> ActionResult:
        return _apply_new_rules(super().revoke_security_group_ingress())

    def _is_held(self) -> bool:
        with world.get_world().lock:
            world.get_world().held_calls -= (held := world.get_world().held_calls > 0)
        return held

    def _list_holders(self) -> list[Any]:
        """Return instances with existing interfaces, which remain for a while after the termination."""
        here, since = world.get_world(), time.monotonic() - world.get_world().linger_s
        if here.blind_calls:
            return []
        return [i for i in here.instances() if i.state != "terminated" or here.gone.get(i.id, 0.0) > since]

    def _key(self) -> str:
        return f"{self.region}/{self._get_param('GroupName')}"

    def _find(self, name: str) -> None:
        if f"{self.region}/{name}" not in world.get_world().placement_groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


FILTERS = {"group-name": "GroupName", "state": "State", "strategy": "Strategy"}


def _apply_new_rules(answer: ActionResult) -> ActionResult:
    """Apply new rules to the machines at once."""
    if on_new_rules := world.get_world().on_new_rules:
        on_new_rules()
    return answer
