"""As horovod.runner.common.util.hosts: the description of one process."""

from dataclasses import dataclass


@dataclass
class SlotInfo:
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int
