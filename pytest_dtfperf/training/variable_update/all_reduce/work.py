"""What the algorithms are written in: who adds what, and where. `graph` makes TensorFlow do it; tests write it down."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")  # a tensor on a device, or what stands for it. Used on another device, it travels there


class Work(Protocol[T]):
    """What can be done with tensors."""

    def add(self, values: Sequence[T], device: str) -> T:
        """The sum of at least one."""

    def mean(self, total: T, device: str) -> T:
        """The mean over all towers, of their sum. Each algorithm does it once for every element, where the sum is complete."""

    def copy(self, value: T, device: str) -> T:
        """The same on that device, from where others get it."""

    def cut(self, value: T, parts: int, device: str) -> list[T]:
        """Into so many parts of about the same size, or fewer if it has fewer elements."""

    def join(self, parts: Sequence[T], like: T, device: str) -> T:
        """What `cut` has cut, in the shape of `like`."""

    def nccl(self, values: Sequence[T], devices: Sequence[str]) -> list[T]:
        """Their sum on each of these GPUs of one process, by Nvidia's library."""


@dataclass(frozen=True)
class Topology:
    """Where towers are, and the CPU beside each."""

    towers: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def by_host(self) -> list[list[int]]:
        """The numbers of the towers beside each CPU."""
        return [[tower for tower, host in enumerate(self.hosts) if host == each] for each in self.all_hosts]


class Algorithm(Protocol):
    """Makes the gradients of one variable into their mean."""

    def __call__(self, work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
        """One gradient from each tower; the mean for each, there or where it can fetch it.

        `turn` counts the variables, so that their adding can be shared out. `shards` is what the spec says behind '#'.
        """
