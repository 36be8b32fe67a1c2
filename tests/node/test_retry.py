"""Pauses before repeated attempts."""

from pytest_dtfperf.node.retry import compute_pause_s


def test_pauses_grow_up_to_the_longest() -> None:
    """Each pause is a multiple of the one before, up to the longest, for any number of attempts."""
    assert [compute_pause_s(asked, 0.5, 3.0) for asked in (1, 2, 3, 4, 5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert compute_pause_s(10**9, 1.0, 30.0, growth=1.1) == 30.0


def test_those_that_began_together_part() -> None:
    """Pauses differ by chance, by so much of them and no more."""
    pauses = [compute_pause_s(2, 1.0, 10.0, spread=0.25) for _ in range(1000)]
    assert all(1.5 <= pause <= 2.5 for pause in pauses)
    assert min(pauses) < 1.6
    assert max(pauses) > 2.4
