"""Whatever is in a file of baselines, it is read, or refused in one line; and what is refused is never overwritten."""

import json
import string
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtfperf.baselines.entry import CalibratedNoise, Entry, Provenance
from pytest_dtfperf.baselines.files import canonical, content_of, published_folder, read_baseline_file
from pytest_dtfperf.baselines.references import references
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.errors import BaselineFileError
from pytest_dtfperf.formats import significant
from tests.baselines.examples import HARDWARE, SOFTWARE, calibrated_of, entry_of, spec_of

FEW = settings(max_examples=50, deadline=None, derandomize=True, database=None)

rates = st.floats(1e-3, 1e9).map(significant)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
dates = st.datetimes().map(lambda date: f"{date.replace(microsecond=0).isoformat()}Z")
noises = st.builds(
    CalibratedNoise,
    run=st.floats(1e-4, 1).map(significant),
    degrees_of_freedom=st.floats(0, 1e5).map(significant),
    session=st.floats(0, 1).map(significant),
    sessions=st.integers(2, 100),
    date=dates,
)
hashes = st.text("0123456789abcdef", min_size=12, max_size=12)
entries = st.builds(
    Entry,
    key=st.builds(lambda gpus, num_ps: spec_of(gpus=gpus, num_ps=num_ps).key, st.integers(1, 512), st.integers(1, 64)),
    samples=st.lists(rates, min_size=1, max_size=10),
    warmup_steps=st.integers(0, 1000),
    steps=st.integers(1, 1000),
    hosts=st.integers(1, 128),
    fingerprint=st.fixed_dictionaries(
        {
            "hardware": st.just(HARDWARE),
            "software": st.dictionaries(words, words | st.none(), max_size=3) | st.just(SOFTWARE),
            "program": st.just({})
            | st.fixed_dictionaries({"training": hashes})
            | st.fixed_dictionaries(
                {
                    "graph": hashes,
                    "operations": st.dictionaries(words, st.integers(1, 9999), max_size=3),
                    "settings": st.dictionaries(words, st.dictionaries(words, words, max_size=2), max_size=2),
                }
            ),
        }
    ).map(Fingerprint.from_json),
    provenance=st.builds(
        Provenance,
        session=words,
        test=words,
        date=dates,
        versions=st.dictionaries(words, words, max_size=2),
        commit=words.filter(bool) | st.none(),
        reason=words.filter(bool) | st.none(),
    ),
    noise=st.none() | noises,
)


@FEW
@given(entries)
def test_an_entry_comes_back_from_its_json(entry: Entry) -> None:
    """Whatever an entry holds, its JSON holds, and is the same when it is written again."""
    data = json.loads(json.dumps(entry.to_file_json()))
    assert Entry.from_json({"key": entry.key, **data}) == entry
    assert Entry.from_json({"key": entry.key, **data}).to_file_json() == data


@FEW
@given(st.lists(entries, max_size=4))
def test_a_file_comes_back_and_is_written_the_same_again(stored: list[Entry]) -> None:
    """A file is read as it was written; writing it again, in whichever order, gives the same bytes."""
    cases: dict[str, list[Any]] = {}
    for entry in stored:
        cases.setdefault(entry.key, []).append(entry.to_file_json())
    data = {"schema": 1, "system": "cpu-x", "entries": cases}
    text = canonical(data)
    assert content_of(text, Path("cpu-x.json")) == data
    assert canonical(json.loads(text)) == text
    assert canonical(dict(reversed(data.items()))) == text


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@FEW
@given(anything)
def test_the_canonical_form_is_one(data: Any) -> None:
    """Any data has one canonical text with the same content, which is its own canonical text."""
    text = canonical(data)
    assert json.loads(text) == data
    assert canonical(json.loads(text)) == text


def whole_file() -> dict[str, Any]:
    """A file that has everything a file can have."""
    published = json.loads((published_folder() / "piz-daint.json").read_text(encoding="utf-8"))
    published["references"] = [{**each, "rows": each["rows"][:2]} for each in published["references"][:1]]
    published["thresholds"] = {"margin": 0.05, "efficiency": published["thresholds"]["efficiency"][:2]}
    entry = entry_of([100.0, 101.0])
    stored = {**entry.to_file_json(), "noise": calibrated_of().to_json()}
    copied: dict[str, Any] = json.loads(json.dumps({**published, "system": "cpu-x", "entries": {entry.key: [stored]}}))
    return copied


WHOLE = canonical(whole_file())
BYTES = WHOLE.encode()


def refused(content: bytes) -> str | None:
    """The problem about a file, or None if it is one; nothing but a problem may be raised, and the file must stay."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cpu-x.json"
        path.write_bytes(content)
        store = BaselineStore(path.parent)
        message = problem(lambda: read_baseline_file(path))
        if message is None:
            used(store)
            return None
        assert problem(store.check) == message
        assert problem(lambda: store.update("cpu-x", [entry_of([1.0, 1.0])])) == message
        assert path.read_bytes() == content
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return message


def problem(use: Callable[[], object]) -> str | None:
    try:
        use()
    except BaselineFileError as error:
        return str(error)
    return None


def used(store: BaselineStore) -> None:
    """What is read can be used in every way, and written again."""
    list(references(store.folder))
    store.entries("cpu-x")
    store.best_num_ps("cpu-x", spec_of())
    store.find("cpu-x", spec_of(), Fingerprint.from_json({"hardware": HARDWARE}))
    store.margin("cpu-x")
    store.least_efficiency("cpu-x", "inception3", 8)
    store.update("cpu-x", [entry_of([1.0, 1.0])])


def test_the_whole_file_is_one() -> None:
    """What is damaged below is a file of baselines before that."""
    assert refused(BYTES) is None


@FEW
@given(st.integers(0, len(BYTES) - 2))
def test_a_cut_file(end: int) -> None:
    """A file that ends anywhere too early is refused; only its last line break may be missing."""
    message = refused(BYTES[:end])
    assert message is not None
    assert "no valid JSON" in message or "cannot be read" in message


@settings(FEW, max_examples=100)
@given(st.integers(0, len(BYTES) - 1), st.integers(0, 255))
def test_another_byte(position: int, byte: int) -> None:
    """A file with any byte changed to any other is still one, or is refused."""
    refused(BYTES[:position] + bytes([byte]) + BYTES[position + 1 :])


def positions(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from positions(inner, (*path, key))


PATHS = sorted(positions(whole_file()), key=str)
KEYS = [path for path in PATHS if isinstance(path[-1], str)]
OTHERS: list[Any] = [None, True, -1, 0, 1.5, 10**400, 1e300, "", "\n", "x", [], {}, [[]], {"x": 1}, "\ud800"]


def inside(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path[:-1]:
        data = data[step]
    return data


@settings(FEW, max_examples=150)
@given(st.sampled_from(PATHS), st.sampled_from(OTHERS))
def test_another_value(path: tuple[str | int, ...], value: Any) -> None:
    """A file with anything else at any place is still one, or is refused."""
    data = whole_file()
    inside(data, path)[path[-1]] = value
    refused(json.dumps(data).encode())


@FEW
@given(st.sampled_from(KEYS), st.text(string.ascii_letters + ' =\n"\\', max_size=8))
def test_another_key(path: tuple[str | int, ...], name: str) -> None:
    """A file with any key renamed is refused, but where keys are names of software."""
    data = whole_file()
    position = inside(data, path)
    if name not in position:
        position[name] = position.pop(path[-1])
        assert refused(json.dumps(data).encode()) or path[-2] in ("software", "versions")


@FEW
@given(st.binary(max_size=60) | words.map(str.encode) | anything.map(lambda data: json.dumps(data).encode()))
def test_something_else(content: bytes) -> None:
    """A file that never was one of baselines is refused."""
    assert refused(content) is not None
