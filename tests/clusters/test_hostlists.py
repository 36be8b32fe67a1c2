"""Lists of hosts with ranges in brackets."""

import re

import pytest

from pytest_dtfperf.clusters.hostlists import MOST, HostListError, expand


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("alice", "alice"),
        ("node[1-3]", "node1 node2 node3"),
        ("node[01-03,20]", "node01 node02 node03 node20"),
        ("node[08-11]", "node08 node09 node10 node11"),
        ("node[3,1-2],login", "node3 node1 node2 login"),
        ("rack[1-2]n[1,4]-ib", "rack1n1-ib rack1n4-ib rack2n1-ib rack2n4-ib"),
        ("10.0.0.[9-11]", "10.0.0.9 10.0.0.10 10.0.0.11"),
        ("[1-2]", "1 2"),
        ("n[1,1]", "n1 n1"),
    ],
)
def test_ranges(hostlist: str, hosts: str) -> None:
    """Ranges are expanded in their order, several brackets as an odometer turns, and leading zeros are kept."""
    assert expand(hostlist) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("hostlist", "words"),
    [
        ("n[1-3", "'n[1-3' has brackets that are not like [01-16,20]"),
        ("n1-3]", "'n1-3]' has brackets that are not like [01-16,20]"),
        ("n[]", "'n[]' has brackets that are not like"),
        ("n[[1]]", "'n[[1]]' has brackets that are not like"),
        ("n[a-b]", "'n[a-b]' has brackets that are not like"),
        ("n[1,]", "'n[1,]' has brackets that are not like"),
        (f"n[{'9' * 5000}]", "has brackets that are not like"),
        ("n[1-2-3]", "'n[1-2-3]' has brackets that are not like"),
        ("a,n[3-1]", "'n[3-1]' counts backwards: 3-1"),
        ("n1,,n2", "there is nothing where a host should be"),
        ("", "there is nothing where a host should be"),
        (",", "there is nothing where a host should be"),
    ],
)
def test_what_is_no_list(hostlist: str, words: str) -> None:
    """What cannot be expanded is refused with the part that is wrong."""
    with pytest.raises(HostListError, match=re.escape(words)):
        expand(hostlist)


@pytest.mark.parametrize(
    "hostlist", ["n[1-99999999999]", "n[1-300]x[1-300]", f"n[1-{MOST}],m", "a[0-9999]b[0-9999]c[0-9999]d[0-9999]"]
)
def test_no_list_is_absurdly_long(hostlist: str) -> None:
    """A range that a slip of the finger made long costs a message, not the memory."""
    with pytest.raises(HostListError, match=f"makes more than {MOST} hosts"):
        expand(hostlist)


def test_the_longest_list() -> None:
    """As many hosts as Slurm knows are expanded."""
    assert len(expand(f"n[1-{MOST}]")) == MOST
