"""Machines for the instances of a cloud: each begins when its instance is launched, and ends when that is terminated."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from moto.ec2.models.instances import Instance

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud import ending, world
from tests.clusters.ec2.cloud.cloud import Cloud
from tests.clusters.ec2.cloud.computer import Computer
from tests.clusters.ec2.cloud.server import Server
from tests.machines import machine
from tests.machines.network import Network, list_missing

PRIVATE, PUBLIC = "10.77.{x}.0/24", "198.18.{x}.0/24"  # addresses for benchmarks stand for those of the internet
PACKAGES = {"nft": "nftables", "sudo": "sudo", "useradd": "passwd"}
_TICK_S = 0.05


def why_not() -> str | None:
    """Why there cannot be such machines here, or None if there can."""
    return list_missing(PACKAGES) or machine.why_not()


class DataCenter(Cloud):
    """A cloud with machines as instances, on a network of its own. Up within the `with` block.

    minute_s    how long a minute of `shutdown -h +minutes` takes on the next machines
    stranger    the next machines do not have the host key that they are given
    gpus        the GPUs that nvidia-smi shows on the next machines; None: as many as their type has
    """

    def __init__(self, server: Server, url: str, user: str = "ubuntu") -> None:
        self.minute_s, self.stranger = 60.0, False
        self.gpus: int | None = None
        self.machines: dict[str, Computer] = {}
        self._user = user
        self._over = threading.Event()
        self._troubles: list[BaseException] = []
        self._work: list[Future[None]] = []
        self.network = Network([PUBLIC, PRIVATE])
        self.caller = self.network.address(253).partition("/")[0]
        try:
            super().__init__(server, url, network=self.network.subnets[1].rpartition(".")[0])
        except BaseException:
            self.network.close()
            raise
        self.world.public_network = self.network.subnets[0].rpartition(".")[0]
        self.world.on_boot, self.world.on_power_off = self._boot, self._power_off
        self.world.on_new_rules = self._set_doors
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="data centre")
        self._clock = threading.Thread(target=self._tick, name="data centre's clock")
        self._clock.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._clock.join()
        self._pool.shutdown()
        for computer in self.machines.values():
            computer.begin_to_end()
        for computer in self.machines.values():
            computer.close()
        self.network.close()
        if self._troubles and error is None:
            raise self._troubles[0]

    def crash(self, instance_id: str) -> None:
        """Cut the machine off; EC2 continues to show its instance as running."""
        self.machines[instance_id].link_down()

    def interrupt_spot(self, instance_id: str, notice_s: float = 0.0) -> None:
        """The notice first, then the end."""
        end = datetime.now(UTC) + timedelta(seconds=notice_s)
        notice = f'{{"action": "terminate", "time": "{end:%Y-%m-%dT%H:%M:%SZ}"}}'
        self.machines[instance_id].give_notice(notice)
        self.world.schedule(notice_s, lambda: super(DataCenter, self).interrupt_spot(instance_id))

    def wait_for_machines(self, count: int) -> Sequence[Computer]:
        """Wait for so many running machines, and return them."""

        def list_running() -> list[Computer]:
            return [m for m in list(self.machines.values()) if m.poll() is None and m.instance.state == "running"]

        wait_until(f"{count} machines are up", lambda: len(list_running()) == count)
        return list_running()

    # Events during a test.

    def _boot(self, instance: Instance) -> None:
        computer = Computer(
            instance, self.network, user=self._user, minute_s=self.minute_s, stranger=self.stranger, gpus=self.gpus
        )
        self.machines[instance.id] = computer

        def boot() -> None:
            try:
                computer.power_on()
            except BaseException as trouble:
                self._troubles.append(trouble)
                raise
            with self.world.lock:
                self.world.console[instance.id] = computer.console
                if instance.state == "pending":
                    world.become(instance, world.RUNNING)

        self._work.append(self._pool.submit(boot))

    def _power_off(self, instance: Instance) -> None:
        if computer := self.machines.get(instance.id):
            self._work.append(self._pool.submit(computer.end))

    def _set_doors(self) -> None:
        for computer in self.machines.values():
            if computer.poll() is None and computer.instance.state == "running":
                computer.set_doors()

    def _tick(self) -> None:
        """Let events happen in time, also without calls of the API."""
        while not self._over.wait(_TICK_S):
            self.world.catch_up()
            for computer in list(self.machines.values()):
                with suppress(AssertionError):
                    self._inspect(computer)

    def _inspect(self, computer: Computer) -> None:
        if computer.poll() == machine.SWITCHED_OFF and computer.instance.state == "running":
            with self.world.lock:
                ending.power_off(computer.instance)
