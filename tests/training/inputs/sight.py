"""A network that only looks."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sight:
    """The properties of a network that an input uses."""

    image_shape: tuple[int, int, int]
    classes: int

    def logits(self, net: Any, images: Any) -> Any:
        raise NotImplementedError("its logits are not used")
