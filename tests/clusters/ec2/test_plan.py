"""The plan of a launch, which does not change after it is made."""

import json

import pytest

from pytest_dtfperf.clusters.ec2.plan import LaunchPlan, Zone, compute_shape, format_timestamp, make_plan, parse_timestamp
from pytest_dtfperf.codec import ValidationError
from tests.clusters.ec2.runs import PLAN, plan

A, B = PLAN.zones
BACKEND_KEYS = {"instance_type": "g5.xlarge", "count": 4, "subnets": ["subnet-1"], "tags": {"a": "b"}}


def test_plan_is_read_back() -> None:
    """A plan that is written as JSON is read back unchanged."""
    assert LaunchPlan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_a_plan_of_a_later_version_is_read() -> None:
    """Keys that this version does not know are passed over: a reaper must understand what a newer session has left."""
    assert LaunchPlan.from_json({**PLAN.to_json(), "later": 1}) == PLAN


def test_plan_with_a_wrong_value_is_refused() -> None:
    """A plan with a value of another type or outside its range is refused, and the error has the key."""
    for key, value in (("count", 0), ("port", "22"), ("zones", [{"name": "a", "subnet": 1}]), ("tags", {"a": 1})):
        with pytest.raises(ValidationError, match=f"^{key}"):
            LaunchPlan.from_json({**PLAN.to_json(), key: value})


def test_tokens_belong_to_an_attempt() -> None:
    """The same attempt has the same token, also after a crash; another attempt, zone or run has another one."""
    assert PLAN.token(0, A) == LaunchPlan.from_json(PLAN.to_json()).token(0, A)
    tokens = {
        PLAN.token(0, A),
        PLAN.token(1, A),
        PLAN.token(0, B),
        plan(nonce="another").token(0, A),
        plan(run="r").token(0, A),
    }
    assert len(tokens) == 5
    assert all(len(token) <= 64 for token in tokens)  # the most that Amazon takes


def test_every_attempt_has_its_own_placement_group() -> None:
    """A group stays in the zone of its first instance, so another zone needs another one."""
    assert PLAN.group(0) != PLAN.group(1)


@pytest.mark.parametrize("seconds, minutes", [(1, 1), (60, 1), (61, 2), (14_400, 240)])
def test_life_is_in_whole_minutes(seconds: int, minutes: int) -> None:
    """The life of an instance is rounded up to whole minutes."""
    assert plan(expires=PLAN.made + seconds).minutes == minutes


def test_new_plan_is_named_after_its_session() -> None:
    """Two runs of one session have different names, which begin with the session's name."""
    decided = {
        name: value for name, value in PLAN.__dict__.items() if name not in ("run", "nonce", "session", "made", "expires")
    }
    one, other = (make_plan(session="20260131T021503Z-9f3c1a", max_hours=2.0, now=1_800_000_000.9, **decided) for _ in range(2))
    assert one.run.startswith("20260131T021503Z-9f3c1a-")
    assert one.run != other.run
    assert one.nonce != other.nonce
    assert (one.made, one.expires) == (1_800_000_000, 1_800_007_200)


@pytest.mark.parametrize(
    "other, same",
    [
        ({"count": 8}, True),
        ({"max_hours": 1.0, "max_usd": 5, "usd_per_hour": 1, "keep": True}, True),
        ({"setup": ["module load x"], "caller_cidr": "203.0.113.7/32"}, True),
        ({"instance_type": "g5.2xlarge"}, False),
        ({"efa": True}, False),
        ({"tags": {"a": "c"}}, False),
        ({"subnets": ["subnet-2"]}, False),
    ],
)
def test_shape(other: dict[str, object], same: bool) -> None:
    """Runs are interchangeable if their instances have the same keys, independent of number and duration."""
    assert (compute_shape({**BACKEND_KEYS, **other}, "1", "r") == compute_shape(BACKEND_KEYS, "1", "r")) is same


def test_shape_is_of_an_account_and_a_region() -> None:
    """Equal keys in another account or region have another shape."""
    assert (
        len(
            {
                compute_shape(BACKEND_KEYS, "1", "r"),
                compute_shape(BACKEND_KEYS, "2", "r"),
                compute_shape(BACKEND_KEYS, "1", "s"),
            }
        )
        == 3
    )


def test_times_in_tags() -> None:
    """A time is written in UTC to the second, and read again; anything else is no time."""
    assert format_timestamp(1_800_000_000) == "2027-01-15T08:00:00Z"
    assert parse_timestamp("2027-01-15T08:00:00Z") == 1_800_000_000
    assert parse_timestamp("soon") is None


def test_subnets_of_one_zone_are_distinguished() -> None:
    """Two subnets of one zone are two places to try."""
    assert Zone("a", "subnet-1") != Zone("a", "subnet-2")
