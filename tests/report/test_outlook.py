"""The progress of a session, and the estimated rest of it."""

from pytest_dtfperf.report.time_estimates import Outlook

A1, A2, B = "t.py::a[1]", "t.py::a[2]", "t.py::b"


class Session:
    """Tests that run at times that the test sets."""

    def __init__(self, expected_s: dict[str, float] | None = None) -> None:
        self.now_s = 100.0
        self.outlook = Outlook([A1, A2, B], (expected_s or {}).get, lambda: self.now_s)

    def run(self, test: str, seconds: float) -> None:
        self.outlook.begin_test(test)
        self.now_s += seconds
        self.outlook.end_test(test)


def test_first_test_has_only_its_number() -> None:
    """Without any known duration, only the number of the test is shown."""
    session = Session()
    session.outlook.begin_test(A1)
    assert session.outlook.describe_progress(A1) == "test 1 of 3"


def test_ended_tests_give_the_rest() -> None:
    """Tests of the same function take as long as the ended ones, others as long as all of them."""
    session = Session()
    session.run(B, 60.0)
    session.run(A1, 20.0)
    session.outlook.begin_test(A2)
    assert session.outlook.describe_progress(A2) == "test 3 of 3, about 20 s left"
    session.now_s += 5.0
    assert session.outlook.left_s() == 15.0


def test_earlier_sessions_have_precedence() -> None:
    """Durations of earlier sessions are used from the first test on."""
    session = Session({A1: 60.0, A2: 600.0, B: 3000.0})
    session.outlook.begin_test(A1)
    assert session.outlook.describe_progress(A1) == "test 1 of 3, about 1 h 01 min left"
    session.now_s += 70.0
    assert session.outlook.left_s() == 3600.0


def test_long_test_gives_a_lower_limit() -> None:
    """If a test takes longer than expected, a lower limit of the others is shown; nothing if it is the last."""
    session = Session({A1: 60.0, A2: 600.0, B: 3000.0})
    session.outlook.begin_test(A1)
    session.now_s += 131.0
    assert session.outlook.describe_progress(A1) == "test 1 of 3, more than 1 h 00 min left"
    session.outlook.end_test(A1)
    session.run(B, 3000.0)
    session.outlook.begin_test(A2)
    assert session.outlook.describe_progress(A2) == "test 3 of 3, about 10 min left"
    session.now_s += 580.0
    assert session.outlook.describe_progress(A2) == "test 3 of 3, about 33 s left"
    session.now_s += 60.0
    assert session.outlook.describe_progress(A2) == "test 3 of 3"


def test_slow_session_scales_the_rest() -> None:
    """If the first test took three times as long as before, the rest is scaled."""
    session = Session({A1: 20.0, A2: 20.0, B: 100.0})
    session.run(A1, 60.0)
    session.outlook.begin_test(A2)
    assert session.outlook.describe_progress(A2) == "test 2 of 3, about 6 min left"


def test_longest_test_decides_the_end() -> None:
    """With two workers the longer test decides the remaining time."""
    session = Session({A1: 5.0, A2: 5.0, B: 95.0})
    session.outlook.workers = 2
    session.run(A1, 5.0)
    session.outlook.begin_test(A2)
    session.outlook.begin_test(B)
    assert session.outlook.describe_progress(B) == "test 3 of 3, about 95 s left"


def test_workers_share_the_rest() -> None:
    """Two workers need half the time while two tests are left."""
    session = Session({A1: 60.0, A2: 60.0, B: 30.0})
    session.outlook.workers = 2
    session.outlook.begin_test(A1)
    session.outlook.begin_test(A2)
    assert session.outlook.left_s() == 75.0
    session.now_s += 60.0
    session.outlook.end_test(A1)
    session.outlook.end_test(A2)
    assert session.outlook.left_s() == 30.0


def test_number_of_a_test_is_its_start_order() -> None:
    """Tests are numbered in the order in which they begin."""
    session = Session()
    for position, test in enumerate((B, A2, A1), start=1):
        session.outlook.begin_test(test)
        assert session.outlook.describe_progress(test) == f"test {position} of 3"
