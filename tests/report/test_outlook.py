"""How far a session is, and how long the rest of it may take."""

from pytest_dtfperf.report.time_estimates import Outlook

A1, A2, B = "t.py::a[1]", "t.py::a[2]", "t.py::b"


class Session:
    """Tests that are run at times that the test says."""

    def __init__(self, expected_s: dict[str, float] | None = None) -> None:
        self.now_s = 100.0
        self.outlook = Outlook([A1, A2, B], (expected_s or {}).get, lambda: self.now_s)

    def run(self, test: str, seconds: float) -> None:
        self.outlook.begin_test(test)
        self.now_s += seconds
        self.outlook.end_test(test)


def test_nothing_is_known_of_the_first_test_ever() -> None:
    """Where neither this session nor an earlier one tells how long tests take, the place of a test is all that is said."""
    session = Session()
    session.outlook.begin_test(A1)
    assert session.outlook.describe_progress(A1) == "test 1 of 3"


def test_what_ended_tells_of_the_rest() -> None:
    """Tests of the same function take as long as those that have ended, others as long as all of them."""
    session = Session()
    session.run(B, 60.0)
    session.run(A1, 20.0)
    session.outlook.begin_test(A2)
    assert session.outlook.describe_progress(A2) == "test 3 of 3, about 20 s left"
    session.now_s += 5.0
    assert session.outlook.left_s() == 15.0


def test_earlier_sessions_go_first() -> None:
    """How long each test took in earlier sessions is known from the first test on; one that takes longer ends at any time."""
    session = Session({A1: 60.0, A2: 600.0, B: 3000.0})
    session.outlook.begin_test(A1)
    assert session.outlook.describe_progress(A1) == "test 1 of 3, about 1 h 01 min left"
    session.now_s += 70.0
    assert session.outlook.left_s() == 3600.0


def test_a_test_that_takes_longer_than_expected_promises_nothing() -> None:
    """How long its further runs take nobody knows: what the others need at least is said, and of the last one nothing."""
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


def test_what_this_session_takes_longer_the_rest_takes_longer_too() -> None:
    """Where the first test took three times as long as in earlier sessions, so will the others."""
    session = Session({A1: 20.0, A2: 20.0, B: 100.0})
    session.run(A1, 60.0)
    session.outlook.begin_test(A2)
    assert session.outlook.describe_progress(A2) == "test 2 of 3, about 6 min left"


def test_the_longest_test_decides_about_the_end() -> None:
    """With two workers, one of whose tests is over soon, the other's is waited for."""
    session = Session({A1: 5.0, A2: 5.0, B: 95.0})
    session.outlook.workers = 2
    session.run(A1, 5.0)
    session.outlook.begin_test(A2)
    session.outlook.begin_test(B)
    assert session.outlook.describe_progress(B) == "test 3 of 3, about 95 s left"


def test_workers_share_what_is_left() -> None:
    """Two processes need half the time, as long as there are two tests left."""
    session = Session({A1: 60.0, A2: 60.0, B: 30.0})
    session.outlook.workers = 2
    session.outlook.begin_test(A1)
    session.outlook.begin_test(A2)
    assert session.outlook.left_s() == 75.0
    session.now_s += 60.0
    session.outlook.end_test(A1)
    session.outlook.end_test(A2)
    assert session.outlook.left_s() == 30.0


def test_places_are_those_in_which_tests_begin() -> None:
    """Whatever their order is in the list."""
    session = Session()
    for position, test in enumerate((B, A2, A1), start=1):
        session.outlook.begin_test(test)
        assert session.outlook.describe_progress(test) == f"test {position} of 3"
