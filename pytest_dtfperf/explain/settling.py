"""From what suspects make of the traced steps to what they make of the measured ones.

The step's change is measured over all steps of all runs; what its parts are, only in a few. Where the two do not agree, each
part takes of the difference what its own error allows (least squares), and no more: the rest is not explained. Traced steps
follow each other and may all be of a bad moment, which was not there when it counted: of too much, more is taken, and in the
end all that the step has not become longer by.
"""

import math
from collections.abc import Sequence

_SURE = 2.0  # standard errors that may be added
_AT_MOST = 4.0  # standard errors that may be taken off a part


def settled(
    seconds: Sequence[float], errors: Sequence[float], change_s: float, change_error_s: float, shorter_s: float = 0.0
) -> list[float]:
    """The same seconds, as near to adding up to the change as their errors allow, and no more than that in all.

    `shorter_s`: what has become shorter for sure meanwhile, and hides as much that has become longer.
    """
    return _within(_shared_out(seconds, errors, change_s, change_error_s), change_s + change_error_s + shorter_s)


def _shared_out(seconds: Sequence[float], errors: Sequence[float], change_s: float, change_error_s: float) -> list[float]:
    """What is missing or too much, by what each part may be off."""
    found = list(seconds)
    variance = sum(error**2 for error in errors)
    missing = change_s - sum(found)
    if variance == 0 or missing == 0:
        return found
    missing *= variance / (variance + change_error_s**2)
    if missing < 0:
        return _less(found, errors, -missing)
    added = min(missing, _SURE * math.sqrt(variance))
    return [each + added * error**2 / variance for each, error in zip(found, errors, strict=True)]


def _within(seconds: Sequence[float], most_s: float) -> list[float]:
    """What is still too much is taken off what adds something, as a part of each: what the step has not become longer by,
    nothing has made it longer by.
    """
    longer = sum(max(0.0, each) for each in seconds)
    part = min(1.0, max(0.0, most_s) / longer) if longer else 1.0
    return [each * part if each > 0 else each for each in seconds]


def _less(seconds: list[float], errors: Sequence[float], too_much: float) -> list[float]:
    """Take so much off those that add something, none of them below 0."""
    found = list(seconds)
    most = [min(each, _AT_MOST * error) if each > 0 else 0.0 for each, error in zip(found, errors, strict=True)]
    left = [i for i, each in enumerate(most) if each > 0]
    while left and too_much > 0:
        variance = sum(errors[i] ** 2 for i in left)
        share = {i: too_much * errors[i] ** 2 / variance for i in left}
        spent = [i for i in left if share[i] >= most[i]]
        for i in spent or left:
            taken = min(share[i], most[i])
            found[i] -= taken
            too_much -= taken
        left = [i for i in left if i not in spent] if spent else []
    return found
