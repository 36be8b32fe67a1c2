"""A network that only looks."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sight:
    """What an input needs to know of a network."""

    image_shape: tuple[int, int, int]
    classes: int

    def logits(self, net: Any, images: Any) -> Any:
        raise NotImplementedError("nobody asks it anything")
