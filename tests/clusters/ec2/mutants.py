"""Deliberate defects of the backend, each one that some launcher out there has or had. `MUTANTS[name](setattr)` puts it in."""

import uuid
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from botocore.config import Config

from pytest_dtfperf.clusters.ec2 import account, cluster, contact, instances, plan, reap, refusals, teardown
from pytest_dtfperf.clusters.ec2.plan import LaunchPlan
from pytest_dtfperf.clusters.ssh import endpoints

SetAttribute = Callable[[Any, str, Any], None]  # setattr, or a monkeypatch's


def default_retries_for_launch(set_attribute: SetAttribute) -> None:
    """botocore repeats what is refused for lack of room, which ends in being throttled."""
    set_attribute(account, "_ONCE", Config(retries={"mode": "legacy", "max_attempts": 2}))


def random_client_token(set_attribute: SetAttribute) -> None:
    """Every repetition of a request is a request of its own."""

    class Careless:
        def __init__(self, client: Any) -> None:
            self._client = client

        def run_instances(self, **wanted: Any) -> Any:
            return self._client.run_instances(**{**wanted, "ClientToken": uuid.uuid4().hex})

    careful = vars(account.Account)["launcher"].func
    careless = cached_property(lambda self: Careless(careful(self)))
    careless.__set_name__(account.Account, "launcher")
    set_attribute(account.Account, "launcher", careless)


def token_without_attempt(set_attribute: SetAttribute) -> None:
    """The token of one zone is used in the next."""
    set_attribute(LaunchPlan, "token", lambda self, attempt, zone: self.nonce)


def tags_after_launch(set_attribute: SetAttribute) -> None:
    """Omit the tags in the calls that create resources."""
    set_attribute(plan, "make_tag_specifications", lambda plan, *kinds: [])


def min_count_one(set_attribute: SetAttribute) -> None:
    """A few instances are taken for all of them."""
    set_attribute(
        plan, "make_launch_request", _change_result(plan.make_launch_request, lambda wanted: wanted | {"MinCount": 1})
    )


def shutdown_behaviour_default(set_attribute: SetAttribute) -> None:
    """Instances that shut themselves down are stopped, not terminated: their disks go on to cost money."""
    set_attribute(
        plan,
        "make_launch_request",
        _change_result(plan.make_launch_request, lambda wanted: wanted | {"InstanceInitiatedShutdownBehavior": "stop"}),
    )


def ignore_state_reason(set_attribute: SetAttribute) -> None:
    """Why an instance ended is not read."""
    set_attribute(refusals, "lacks_capacity", lambda reason: False)


def notfound_is_fatal(set_attribute: SetAttribute) -> None:
    """Treat an instance that Amazon does not show yet as an error."""
    set_attribute(instances, "describe_by_id", lambda ec2, ids: instances._describe(ec2, InstanceIds=list(ids)))


def no_settle(set_attribute: SetAttribute) -> None:
    """An empty list is believed at once."""
    set_attribute(teardown, "_compute_unsettled_s", lambda record, settle_s: 0.0)


def no_ledgers_in_reap(set_attribute: SetAttribute) -> None:
    """Find runs by their tags only, and not by ledgers."""
    set_attribute(reap, "list_ledgers", lambda folder=None: [])


def delete_group_without_waiting(set_attribute: SetAttribute) -> None:
    """A group that something still needs is an error."""
    set_attribute(teardown, "_IN_USE", ())
    set_attribute(teardown, "_may_pass", lambda error: False)


def accept_any_host_key(set_attribute: SetAttribute) -> None:
    """Accept any host key in ssh."""
    set_attribute(endpoints, "SSH_OPTIONS", tuple(_trust_any_key(word) for word in endpoints.SSH_OPTIONS))


def private_address_for_ssh(set_attribute: SetAttribute) -> None:
    """Logins go to the address that only the other instances can reach."""
    careful = contact.make_endpoint

    def careless(plan: LaunchPlan, folder: Any, instance: Any) -> Any:
        found = careful(plan, folder, instance)
        return type(found)(found.name, f"{plan.user}@{instance.private}", instance.private, found.options)

    set_attribute(contact, "make_endpoint", careless)
    set_attribute(contact, "_CONNECT_S", 1.0)
    set_attribute(cluster, "BOOT_S", 3.0)


def ingress_from_anywhere(set_attribute: SetAttribute) -> None:
    """Open the login port to all addresses."""
    careful = plan.make_login_permission
    set_attribute(plan, "make_login_permission", lambda cidr, port: careful("0.0.0.0/0", port))


def _change_result(careful: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: change(careful(*arguments, **named))


def _trust_any_key(word: str) -> str:
    return word.replace("StrictHostKeyChecking=yes", "StrictHostKeyChecking=no")


MUTANTS: Mapping[str, Callable[[SetAttribute], None]] = {
    mutant.__name__: mutant
    for mutant in (
        default_retries_for_launch,
        random_client_token,
        token_without_attempt,
        tags_after_launch,
        min_count_one,
        shutdown_behaviour_default,
        ignore_state_reason,
        notfound_is_fatal,
        no_settle,
        no_ledgers_in_reap,
        delete_group_without_waiting,
        accept_any_host_key,
        private_address_for_ssh,
        ingress_from_anywhere,
    )
}
