"""What is known of one side of a comparison: of the training that is explained, or of what it is compared with. What is not
known is absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.explain.anatomy import Anatomy
from pytest_dtfperf.explain.probes import Probes
from pytest_dtfperf.explain.scores import Scores


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Of one side. All of it is optional, and what is there twice agrees or is said not to."""

    name: str = "the baseline"  # in messages: "62 % slower than the anchor"
    when: str = "then"  # in messages: "2.00 ms then", "2.00 ms in the anchor"
    step_s: Sequence[float] = ()  # seconds of a step in each run that counts: devices x batch size / rate
    anatomy: Anatomy | None = None  # of the last run that was traced
    scores: Scores | None = None  # of the same run's measured steps
    probes: Probes | None = None  # of the hosts and links it was on
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # host -> its account of the last run
    disturbances: Sequence[str] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)  # task -> host
    sleeps: Mapping[str, float] = field(default_factory=dict)  # task -> seconds of injected sleep in every step
    cluster: str | None = None  # by its name: for the commands that go on from here
    coordinated: bool = False  # a coordinator gives each worker its next step as soon as it is ready
    in_lockstep: bool = True  # whether every step of a worker waits for all others
    is_own_program: bool = False  # which nothing can be traced of: it may report its steps
    graph: str | None = None  # the hash of what a step computes
    # What differs between the two sides' fingerprints, one phrase each; those of the side that is looked at count.
    program_changes: Sequence[str] = ()  # of the graph, and of the settings that it runs with
    software_changes: Sequence[str] = ()
    hardware_changes: Sequence[str] = ()
