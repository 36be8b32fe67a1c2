"""How long to wait before the next try. Pure, but for chance: the caller waits, and knows until when."""

import random

_MOST_GROWTHS = 100  # beyond them, no pause of ours has still to grow


def pause_s(asked: int, first_s: float, most_s: float, *, growth: float = 2.0, spread: float = 0.0) -> float:
    """Return the seconds to wait after 1, 2, 3, ... failed tries.

    Each pause is `growth` times as long as the one before until it is `most_s`, and then longer or shorter by chance, by up to
    this part of it: many that began together should not go on together.
    """
    return min(first_s * growth ** min(asked - 1, _MOST_GROWTHS), most_s) * random.uniform(1 - spread, 1 + spread)
