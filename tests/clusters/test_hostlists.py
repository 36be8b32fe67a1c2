"""Lists of hosts with ranges in brackets."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.clusters.file import MAX_HOSTS, HostListError, expand_hostlist


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
    assert expand_hostlist(hostlist) == tuple(hosts.split())


@pytest.mark.parametrize(
    ("hostlist", "words"),
    [
        ("n[1-3", "'n[1-3' has brackets that are not like [01-16,20]"),
        ("n1-3]", "'n1-3]' has brackets that are not like [01-16,20]"),
        ("n[]", "'n[]' has brackets that are not like"),
        ("n[[1]]", "'n[[1]]' has brackets that are not like"),
        ("n[a-b]", "'n[a-b]' has brackets that are not like"),
        ("n[1,]", "'n[1,]' has brackets that are not like"),
        (f"n[{'9' * 5000}]", f"'n[{'9' * 58}'... (5003 characters) has a number of 5000 digits; 18 are the most"),
        (f"n[1-{'9' * 5000}]", "has a number of 5000 digits"),
        ("n[1\u00b2]", "'n[1\u00b2]' has brackets that are not like"),
        ("n[\u0661-\u0663]", "has brackets that are not like"),
        ("n[1-2-3]", "'n[1-2-3]' has brackets that are not like"),
        ("a,n[3-1]", "'n[3-1]' counts backwards: 3-1"),
        ("n1,,n2", "there is nothing where a host should be"),
        ("", "there is nothing where a host should be"),
        (",", "there is nothing where a host should be"),
    ],
)
def test_invalid_lists_are_refused(hostlist: str, words: str) -> None:
    """A list that cannot be expanded is refused with its invalid part."""
    with pytest.raises(HostListError, match=re.escape(words)):
        expand_hostlist(hostlist)


@pytest.mark.parametrize(
    "hostlist",
    [
        "n[1-99999999999]",
        "n[1-300]x[1-300]",
        f"n[1-{MAX_HOSTS}],m",
        "a[0-9999]b[0-9999]c[0-9999]d[0-9999]",
        "n" + "[0-65535]" * 1000,
        f"n[{','.join(['0-65535'] * 1000)}]",
    ],
    ids=["range", "product", "one too many", "odometer", "many brackets", "many ranges"],
)
def test_huge_range_is_refused(hostlist: str) -> None:
    """A range with too many hosts, as by a typing error, is refused before it is expanded."""
    with pytest.raises(HostListError, match=f"makes more than {MAX_HOSTS} hosts"):
        expand_hostlist(hostlist)


def test_longest_list_is_expanded() -> None:
    """A list of as many hosts as Slurm supports is expanded."""
    assert len(expand_hostlist(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


def by_the_definition(hostlist: str) -> list[str]:
    """A list splits at commas outside brackets first, and then at one pair of brackets at a time."""
    found = []
    for pattern in re.split(r",(?![^\[\]]*\])", hostlist):
        names = [pattern]
        while "[" in names[0]:
            names = [
                f"{head}{number}{tail}"
                for head, inside, tail in (re.split(r"\[(.*?)\]", name, maxsplit=1) for name in names)
                for number in _count_range(inside)
            ]
        found += names
    return found


def _count_range(inside: str) -> list[str]:
    ends = [part.split("-") for part in inside.split(",")]
    return [str(n).zfill(len(each[0])) for each in ends for n in range(int(each[0]), int(each[-1]) + 1)]


NUMBERS = st.integers(0, 120).flatmap(lambda n: st.sampled_from([str(n), f"{n:03}", f"{n}-{n + 2}", f"{n:03}-{n + 1:03}"]))
BRACKETS = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
PATTERNS = st.lists(BRACKETS | st.sampled_from(["n", "rack", "-ib", ".a"]), min_size=1, max_size=3).map("".join)


@given(st.lists(PATTERNS, min_size=1, max_size=6).map(",".join))
def test_lists_are_expanded_as_defined(hostlist: str) -> None:
    """Any list of patterns is expanded to the names of the definition."""
    assert list(expand_hostlist(hostlist)) == by_the_definition(hostlist)


@given(st.text(alphabet="n0189[],-\u00b2 ", max_size=24))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    """Any text is expanded to names without brackets, or is refused."""
    try:
        names = expand_hostlist(text)
    except HostListError:
        return
    assert names
    assert not any(set(name) & set("[],") for name in names)
