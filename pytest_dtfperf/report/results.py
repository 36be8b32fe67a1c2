"""What a session came to, as reports and exports are given it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.history.past import Past
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report.published import PublishedRate


@dataclass(frozen=True)
class SessionResults:
    """A session's measurements, and what they are shown beside."""

    records: Sequence[Record]
    published: Sequence[PublishedRate] = ()  # of the models that were measured
    pasts: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session
    sections: Sequence[tuple[str, Sequence[str]]] = ()  # of other plugins: title, lines
