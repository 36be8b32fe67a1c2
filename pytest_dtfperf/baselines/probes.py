"""What a baseline keeps of what its hosts and links could do: as much as tells what is usual, in 100 kB at most."""

from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.baselines.canonical import rounded

MOST_HOSTS = 32  # a host that is not among them is held against the median of these, as one that was not lent then


def kept(found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of a measurement's probes: all of a few hosts; of many the first ones, and the links of no more."""
    if found is None:
        return None
    links = {name: _fewer_streams(link) for name, link in _first(found["links"], 2 * MOST_HOSTS).items()}
    fewer = {"hosts": _first(found["hosts"], MOST_HOSTS), "links": links, "unknown": _first(found["unknown"], MOST_HOSTS)}
    data: Mapping[str, Any] = rounded({**found, **fewer})
    return data


def _fewer_streams(link: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**link, "streams": _first(link["streams"], MOST_HOSTS)}


def _first(found: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: found[name] for name in sorted(found)[:count]}
