"""EC2 as a cluster: launch instances, use them over SSH, and release them in every case.

They end in four ways, each of which works without the others: the end of the `with` block; a process beside this one that
sees it die (`watchdog`); a timer in the instances themselves (`contact`); and the next session, which looks for
instances that others have left (`reap`).

When the connection to an instance ends, Amazon is asked for its state. A spot instance that is taken back, or one that is
terminated, looks like a lost host at first. Amazon's reason makes it a failure of the cluster, and never a slow training.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.children import Watchdog
from pytest_dtfperf.clusters.ec2 import costs, instance_types, instances, launcher, log_redaction, reap, refusals, watchdog
from pytest_dtfperf.clusters.ec2.account import Account, iterate_attempts, translate_errors
from pytest_dtfperf.clusters.ec2.contact import BOOT_S, Contact, make_endpoints, make_keys
from pytest_dtfperf.clusters.ec2.costs import Ask, CostEstimate, InstanceLifetime, Price, confirm_cost, make_bill
from pytest_dtfperf.clusters.ec2.instance_types import Offer, count_used_gpus, set_devices
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.ec2.keys import DEFAULT_MAX_HOURS, DEFAULT_USER
from pytest_dtfperf.clusters.ec2.launcher import Launch, allow_ingress
from pytest_dtfperf.clusters.ec2.ledger import Ledger, LedgerRecord, get_state_folder, list_ledgers
from pytest_dtfperf.clusters.ec2.plan import (
    LaunchPlan,
    compute_shape,
    count_efa_interfaces,
    format_timestamp,
    make_login_permission,
    make_plan,
)
from pytest_dtfperf.clusters.ec2.teardown import SETTLE_S, tear_down
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Channel, LossReason, Lost, Resources
from pytest_dtfperf.clusters.ssh.cluster import SshBackend, open_allocation
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.errors import AllocationError, AllocationOver, ClusterFileError, HostLost
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node.owner import Fate, Owner

LATE_S = 6.0  # how much later than the end of the connection Amazon may report that it has ended an instance

Poll = Callable[[], Mapping[str, Instance]]


class Ec2Allocation:
    """The instances of one run."""

    def __init__(
        self,
        allocation: Allocation,
        instances: Sequence[Instance],
        poll: Poll,
        placement: Mapping[str, Any],
        failed: Mapping[str, AllocationError] = MappingProxyType({}),
    ) -> None:
        """Note the hosts.

        Args:
            placement: the properties with an effect on speed that only Amazon knows.
            failed: the errors of further instances, by id. A start raises them.
        """
        self._allocation = allocation
        self._instances = instances
        self._placement = placement
        self._failed = failed
        self.hosts = [replace(host, fingerprint=make_fingerprint(placement)) for host in allocation.hosts]
        self._ids = [each.id for each in instances]
        self._poll = poll

    def copy_with(self, config: ClusterConfig, without: Collection[str] = ()) -> "Ec2Allocation":
        """Return the same instances, but some, with another stack."""
        allocation = SshBackend().share_hosts(self._allocation, config, without)
        left = [each for each, host in zip(self._instances, self.hosts, strict=True) if host.name not in without]
        failed = {name: error for name, error in self._failed.items() if name not in without}
        return Ec2Allocation(allocation, left, self._poll, self._placement, failed)

    def start(self, argv: Sequence[str]) -> Channel:
        if self._failed:
            raise next(iter(self._failed.values()))
        self._refuse_if_over(0.0)
        try:
            return Ec2Channel(self._allocation.start(argv), self._ids, self._poll)
        except AllocationError:
            self._refuse_if_over(LATE_S / 3)  # most failed starts have another cause
            raise

    def _refuse_if_over(self, patience_s: float) -> None:
        for _ in iterate_attempts(patience_s, first_s=0.5):
            states = _poll_if_reachable(self._poll)
            if ends := {name: why for name in self._ids if name in states and (why := explain_end(states[name]))}:
                raise AllocationOver("; ".join(ends.values()), reasons=ends)


class Ec2Channel:
    """The SSH backend's channel, with Amazon's reasons for lost hosts."""

    def __init__(self, channel: Channel, ids: Sequence[str], poll: Poll) -> None:
        self._channel = channel
        self._ids = ids
        self._poll = poll
        self._next: deque[tuple[int, bytes | Lost]] = deque()

    def send(self, line: bytes) -> None:
        try:
            self._channel.send(line)
        except HostLost as lost:
            states = _poll_if_reachable(self._poll)  # also of instances that were left out
            if why := "; ".join(filter(None, (explain_end(states[name]) for name in self._ids if name in states))):
                raise HostLost(f"{lost}: {why}") from lost
            raise

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        if self._next:
            return self._next.popleft()
        heard = self._channel.receive(timeout_s)
        if heard is None:
            return None
        host, what = heard
        if isinstance(what, Lost) and (why := self._explain_loss(host, what.reason)):
            self._next.append((host, Lost(LossReason.TAKEN_BACK, why)))
            return host, f"({what.description})".encode()  # the SSH error is kept among the host's last lines
        return heard

    def explain_silence(self, host: int) -> Lost | None:
        why = self._explain_loss(host, LossReason.SILENT)
        return Lost(LossReason.TAKEN_BACK, why) if why else self._channel.explain_silence(host)

    def close(self) -> None:
        self._channel.close()

    def _explain_loss(self, host: int, reason: LossReason) -> str | None:
        """Return why Amazon ended a host, after a short wait; None if the host reported its agent's end."""
        patience_s = 0.0 if reason in (LossReason.ENDED, LossReason.UNRESPONSIVE) else LATE_S
        for _ in iterate_attempts(patience_s, first_s=0.5, most_s=2.0):
            found = _poll_if_reachable(self._poll).get(self._ids[host])
            if found and (why := explain_end(found)):
                return why
        return None


def make_fingerprint(placement: Mapping[str, Any]) -> Fingerprint:
    """Return the properties that comparable measurements share, and the image, which may be what is tested."""
    cloud = ("instance_type", "zone", "placement", "efa_interfaces", "baseline_gbps")
    return Fingerprint(hardware=Hardware(cloud={name: placement[name] for name in cloud}), software={"ami": placement["ami"]})


def explain_end(instance: Instance) -> str | None:
    """Return why an instance has ended, for messages; None if Amazon reports no end."""
    if not instance.runs_no_more:
        return None
    if refusals.was_reclaimed(instance.reason):
        return f"Amazon has taken spot instance {instance.id} in {instance.zone} back: {instance.reason}"
    return f"instance {instance.id} in {instance.zone} is {instance.state}: {instance.reason or 'no reason is given'}"


def _poll_if_reachable(poll: Poll) -> Mapping[str, Instance]:
    """Return the instances' states; empty if Amazon does not answer, so that the lost host is reported in any case."""
    with suppress(ClientError, BotoCoreError):
        return poll()
    return {}


WORTHWHILE_S = 600.0  # a kept run with less time left is not taken


def take_kept_run(account: Account, shape: str, count: int, folder: Path | None = None) -> tuple[Ledger, LedgerRecord] | None:
    """Return a kept run of that shape with enough instances, now held by this process; None if there is none."""
    for ledger in list_ledgers(folder):
        record = ledger.read_record()
        if record is None or not _is_suitable(record, account, shape, count):
            continue
        with ledger.locked():
            record = ledger.read_record()
            if record is not None and _is_suitable(record, account, shape, count):
                ledger.note_held(Owner.read_own(), account.clock.get_time())
                return ledger, record
    return None


def find_kept_instances(account: Account, record: LedgerRecord) -> list[Instance] | None:
    """Return all instances of a run in launch order if all of them run; None if the run cannot be used any more."""
    ids = list(record.ready)
    found = instances.describe_by_id(account.ec2, ids)
    if len(found) < len(ids) or any(each.state != "running" for each in found.values()):
        return None
    return sorted(found.values(), key=lambda each: each.index)


def _is_suitable(record: LedgerRecord, account: Account, shape: str, count: int) -> bool:
    plan, holder = record.plan, record.holder
    return (
        plan.keep
        and record.is_ready
        and not record.is_closed
        and (plan.account, plan.region, plan.shape) == (account.id, account.region, shape)
        and len(record.ready) >= count
        and plan.expires - (account.clock.get_time() or time.time()) > WORTHWHILE_S
        and (holder is None or holder.fate is Fate.GONE)
    )


@dataclass(frozen=True)
class InstanceGroup:
    """The instances of one run, in launch order."""

    account: Account
    plan: LaunchPlan
    ledger: Ledger
    offer: Offer
    instances: Sequence[Instance]


class Ec2:
    """Instances of one type in one region, as described in clusters.toml."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        settle_s: float = SETTLE_S,
        folder: Path | None = None,
        check_ip: str = launcher.CHECK_IP,
        ask: Ask = costs.ask_at_terminal,
    ) -> None:
        """`settle_s`: time until Amazon shows what it has accepted. `folder`: of the ledgers, by default this user's.

        `ask` confirms the cost with the user if the cluster's table sets no limit.
        """
        self._config = config
        self._backend_keys = config.backend_keys
        self._where = f"cluster {config.name!r}"
        self._settle_s = settle_s
        self._folder = folder or get_state_folder()
        self._check_ip = check_ip
        self._ask = ask

    @contextmanager
    def allocate(self, resources: Resources) -> Iterator[Allocation]:
        with self.provide_instances(resources) as lot, ExitStack() as connections:
            failed = self._connect(lot, resources)
            while True:
                left = [each for each in lot.instances if each.id not in failed]
                endpoints = make_endpoints(lot.plan, lot.ledger.folder, left)
                try:
                    allocation = connections.enter_context(open_allocation(self._config, endpoints, resources))
                    break
                except AllocationError as error:
                    if not resources.may_lack_hosts or not 0 < len(error.hosts) < len(left):
                        raise
                    failed |= {name: AllocationError(error.describe_host(name), host=name) for name in error.hosts}
            yield Ec2Allocation(allocation, left, _poll(lot), _make_placement(lot), failed)

    @contextmanager
    def provide_instances(self, resources: Resources) -> Iterator[InstanceGroup]:
        """Yield running instances. New ones have not been connected to. The end of the block terminates or keeps them."""
        log_redaction.hide_credentials()
        account = Account.open(self._config)
        resources.on_status(str(account))
        reap.reap_runs(account, settle_s=self._settle_s, folder=self._folder, on_status=resources.on_status)
        with translate_errors(account, self._where):
            offer = instance_types.get_offer(account, self._backend_keys["instance_type"])
            if problem := instance_types.find_problem(offer, self._backend_keys):
                raise ClusterFileError(f"{self._where}: {problem}")
            price = costs.get_price(account, offer, self._spot, given=self._backend_keys.get("usd_per_hour"))
        count = require_hosts(set_devices(self._config, offer), resources, "count or devices_per_host")
        give_back = partial(self._give_back, account, offer=offer, price=price, resources=resources)
        if self._backend_keys.get("keep") and (lot := self._take_kept(account, offer, count, resources)):
            try:
                yield lot
            finally:
                give_back(lot.ledger)
            return
        plan = self._plan(account, offer, price, count, resources)
        ledger = Ledger.from_plan(plan, self._folder)
        with Watchdog(watchdog.make_watchdog_command(ledger.path, self._settle_s), dict(os.environ)) as watch:
            try:
                yield self._launch(account, offer, plan, ledger, resources)
            finally:
                give_back(ledger)
                watch.cancel()  # if the release was interrupted or not confirmed, the watchdog continues

    def _plan(self, account: Account, offer: Offer, price: Price, count: int, resources: Resources) -> LaunchPlan:
        """Return the plan of a launch after its cost was confirmed. Nothing has been created yet."""
        backend_keys, max_hours = self._backend_keys, float(self._backend_keys.get("max_hours", DEFAULT_MAX_HOURS))
        with translate_errors(account, self._where):
            image = launcher.find_image(account, backend_keys, offer, self._where)
            vpc, zones = launcher.find_zones(account, backend_keys, self._where)
        public = backend_keys.get("address", "public") == "public"
        plan = make_plan(
            session=resources.session,
            cluster=self._config.name,
            shape=compute_shape(backend_keys, account.id, account.region),
            owner=Owner.read_own(),
            launched_by=account.user,
            account=account.id,
            region=account.region,
            vpc=vpc,
            zones=zones,
            instance_type=offer.instance_type,
            count=count,
            ami=image.id,
            root_device=image.root_device,
            volume_gib=launcher.compute_volume_gib(backend_keys, image),
            spot=self._spot,
            placement="placement" in backend_keys,
            efa=count_efa_interfaces(offer.efa_interfaces, public=public) if backend_keys.get("efa") else 0,
            public=public,
            caller_cidr=launcher.find_caller_cidr(backend_keys, self._check_ip),
            user=backend_keys.get("user", DEFAULT_USER),
            port=backend_keys.get("port", 22),
            keep=bool(backend_keys.get("keep")),
            max_hours=max_hours,
            now=account.clock.get_time() or time.time(),
            tags=backend_keys.get("tags", {}),
        )
        if plan.efa and plan.efa < offer.efa_interfaces:
            resources.on_status(
                f"{plan.efa} of {offer.efa_interfaces} EFA interfaces: public addresses go with one only. "
                'Use address = "private" from a machine inside the VPC for all'
            )
        estimate = CostEstimate(str(account), offer.instance_type, count, max_hours, price, self._spot)
        resources.on_status(str(estimate))
        confirm_cost(estimate, self._config, self._ask)
        return plan

    def _launch(self, account: Account, offer: Offer, plan: LaunchPlan, ledger: Ledger, resources: Resources) -> InstanceGroup:
        """Launch all instances, and return them running."""
        ledger.begin(plan)
        make_keys(ledger.folder, plan.name)
        with translate_errors(account, self._where):
            found = Launch(account, plan, ledger, offer, resources.on_status, resources.may_lack_hosts)()
        return InstanceGroup(account, plan, ledger, offer, found)

    def _connect(self, lot: InstanceGroup, resources: Resources) -> dict[str, AllocationError]:
        """Make the first contact with new instances. Return the errors of those that may be missing, by id."""
        record = lot.ledger.read_record()
        if record is None or record.is_ready:
            return {}
        resources.on_status(
            f"{format_count(len(lot.instances), 'instance')} in {lot.instances[0].zone}; waiting until they can be logged in to"
        )
        gpus = count_used_gpus(self._config, lot.offer)
        boot_s = float(self._backend_keys.get("boot_s", BOOT_S))
        with translate_errors(lot.account, self._where):
            contact = Contact(lot.ledger.folder, gpus, boot_s, _poll(lot), resources.on_status, _format_hint(lot.plan))
            endpoints = make_endpoints(lot.plan, lot.ledger.folder, lot.instances)
            failed = contact.contact_all(endpoints, may_lack_hosts=resources.may_lack_hosts)
        if not failed:
            lot.ledger.note("ready", instances=[each.id for each in lot.instances])
        return failed

    def _take_kept(self, account: Account, offer: Offer, count: int, resources: Resources) -> InstanceGroup | None:
        """Return the instances that an earlier session has kept, if they are unchanged; None if there are none."""
        shape = compute_shape(self._backend_keys, account.id, account.region)
        taken = take_kept_run(account, shape, count, self._folder)
        if taken is None:
            return None
        ledger, record = taken
        with _release_after_error(ledger), translate_errors(account, self._where):
            found = find_kept_instances(account, record)
            if found is None:
                resources.on_status(f"what run {ledger.run} had kept runs no more")
                tear_down(account, ledger.run, ledger, settle_s=self._settle_s, on_status=resources.on_status)
                return None
            group = record.security_group
            if group:  # this machine's address may have changed
                here = launcher.find_caller_cidr(self._backend_keys, self._check_ip)
                allow_ingress(account, group, [make_login_permission(here, record.plan.port)])
        resources.on_status(
            f"{count} of {format_count(len(found), 'instance')} of run {ledger.run}, "
            f"kept until {format_timestamp(record.plan.expires)}"
        )
        return InstanceGroup(account, record.plan, ledger, offer, found[:count])

    def _give_back(self, account: Account, ledger: Ledger, *, offer: Offer, price: Price, resources: Resources) -> None:
        """Keep the instances if the cluster keeps them and all are well; otherwise terminate them. Reports the cost."""
        record = ledger.read_record()
        if record is None:
            if ledger.has_begun:  # the ledger is gone or unreadable: everything with the run's tag ends all the same
                tear_down(account, ledger.run, None, settle_s=self._settle_s, on_status=resources.on_status)
            return
        found: dict[str, Instance] = {}
        with suppress(ClientError, BotoCoreError):  # termination must not wait for the bill
            found = instances.describe_by_id(account.ec2, list(record.instances))
        wanted = record.ready if record.plan.keep and record.is_ready else ()
        now = account.clock.get_time() or time.time()
        try:
            if wanted and all(each in found and found[each].state == "running" for each in wanted):
                with suppress(AllocationError):  # otherwise it has no owner once this process has ended
                    ledger.note_kept()
                until = format_timestamp(record.plan.expires)
                resources.on_status(f"run {ledger.run} is kept until {until}; `dtfperf ec2 down` ends it")
            else:
                tear_down(account, ledger.run, ledger, settle_s=self._settle_s, on_status=resources.on_status)
        finally:
            if found:
                lives = [InstanceLifetime(each.id, max(each.launched, record.held_since), now) for each in found.values()]
                placement = _make_placement(InstanceGroup(account, record.plan, ledger, offer, list(found.values())))
                resources.spent(make_bill(price, lives, run=ledger.run, placement=placement))

    @property
    def _spot(self) -> bool:
        return bool(self._backend_keys.get("spot"))


@contextmanager
def _release_after_error(ledger: Ledger) -> Iterator[None]:
    """Release kept instances if the block fails: while held, they would cost and other sessions would launch more."""
    try:
        yield
    except BaseException:  # Ctrl-C, too
        with suppress(AllocationError):  # otherwise they have no owner once this process has ended
            ledger.note_kept()
        raise


def _poll(lot: InstanceGroup) -> Poll:
    ids = [each.id for each in lot.instances]
    return lambda: instances.describe_by_id(lot.account.ec2, ids)


def _format_hint(plan: LaunchPlan) -> str:
    if plan.public:
        return (
            f"Logins are let in from {plan.caller_cidr}: is that where this machine's connections come from (caller_cidr), and "
            "do the subnets have a route to the internet?"
        )
    return f"Is this machine in {plan.caller_cidr}, from where logins are let in, and is there a way from it to {plan.vpc}?"


def _make_placement(lot: InstanceGroup) -> dict[str, str | float | bool | None]:
    """Return the properties of the instances with an effect on speed that only Amazon knows."""
    return {
        "region": lot.plan.region,
        "zone": lot.instances[0].zone if lot.instances else None,
        "instance_type": lot.plan.instance_type,
        "ami": lot.plan.ami,
        "spot": lot.plan.spot,
        "placement": "cluster" if lot.plan.placement else None,
        "efa_interfaces": lot.plan.efa,
        "baseline_gbps": lot.offer.baseline_gbps,
        "network": lot.offer.network,
    }
