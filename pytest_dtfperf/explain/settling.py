"""From what suspects make of the traced steps to what they make of the measured ones.

The step's change is measured over all steps of all runs; what its parts are, only in a few. Where the two do not agree, each
part takes of the difference what its own error allows (least squares), none more than chance explains. What then is missing is
not explained.
"""

import math
from collections.abc import Sequence

_SURE = 2.0  # standard errors


def settled(seconds: Sequence[float], errors: Sequence[float], change_s: float, change_error_s: float) -> list[float]:
    """The same seconds, as near to adding up to the change as their errors allow."""
    variance = sum(error**2 for error in errors)
    if variance == 0:
        return list(seconds)
    missing = change_s - sum(seconds)
    most = _SURE * math.sqrt(variance)
    moved = min(max(missing, -most), most) * variance / (variance + change_error_s**2)
    return [each + moved * error**2 / variance for each, error in zip(seconds, errors, strict=True)]
