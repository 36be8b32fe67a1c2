"""How far apart clocks and windows of one run may be before one of them is wrong: docs/numbers.md."""

# Largest disagreement between the chief's clock and a worker's, as a part of the measured time. Beyond it, one is wrong.
CROSS_CHECK = 0.02
# ... but the end of the last step may reach workers at different times, by this part of a step: in windows of a few steps of
# seconds each, as the large networks have on CPUs, that is more than 2 %.
END_SKEW = 0.25
# ... and by up to a whole one where each waits for values of its own: the others have begun the next step before they have come
# over a slow link, and cannot end it without it. 0.7 was seen.
VALUES_SKEW = 1.0
# ... and a worker may be off its core at either edge while the chief is not. Seen on two cores with ten processes: 44 ms.
EDGE_SLACK_S = 0.1
# A window cannot be longer than the run around it by the controller's clock, which stands still while its machine sleeps.
WALL_SLACK_S = 60.0
