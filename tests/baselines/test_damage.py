"""Any file of baselines is read or refused in one line, and a refused file is never overwritten."""

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
            | st.fixed_dictionaries({"graph": hashes})
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
def test_entry_survives_json(entry: Entry) -> None:
    """Any entry is the same after JSON, and has the same JSON again."""
    data = json.loads(json.dumps(entry.to_file_json()))
    assert Entry.from_json({"key": entry.key, **data}) == entry
    assert Entry.from_json({"key": entry.key, **data}).to_file_json() == data


@FEW
@given(st.lists(entries, max_size=4))
def test_file_survives_reading_and_writing(stored: list[Entry]) -> None:
    """A file is read as it was written, and written with the same bytes from any order of keys."""
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
def test_canonical_text_is_stable(data: Any) -> None:
    """The canonical text of any data has the same data, and is its own canonical text."""
    text = canonical(data)
    assert json.loads(text) == data
    assert canonical(json.loads(text)) == text


def make_whole_file() -> dict[str, Any]:
    """Return a file with everything that a file can have."""
    published = json.loads((published_folder() / "piz-daint.json").read_text(encoding="utf-8"))
    published["references"] = [{**each, "rows": each["rows"][:2]} for each in published["references"][:1]]
    published["thresholds"] = {"margin": 0.05, "efficiency": published["thresholds"]["efficiency"][:2]}
    entry = entry_of([100.0, 101.0])
    stored = {**entry.to_file_json(), "noise": calibrated_of().to_json()}
    copied: dict[str, Any] = json.loads(json.dumps({**published, "system": "cpu-x", "entries": {entry.key: [stored]}}))
    return copied


WHOLE = canonical(make_whole_file())
BYTES = WHOLE.encode()


def find_damage(content: bytes) -> str | None:
    """Return the error about a file, or None if it is valid; no other error is raised, and the file is unchanged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cpu-x.json"
        path.write_bytes(content)
        store = BaselineStore(path.parent)
        message = catch_error(lambda: read_baseline_file(path))
        if message is None:
            use_store(store)
            return None
        assert catch_error(store.check) == message
        assert catch_error(lambda: store.update("cpu-x", [entry_of([1.0, 1.0])])) == message
        assert path.read_bytes() == content
        assert message.startswith(f"{path}: ")
        assert message.isprintable()
        return message


def catch_error(use: Callable[[], object]) -> str | None:
    try:
        use()
    except BaselineFileError as error:
        return str(error)
    return None


def use_store(store: BaselineStore) -> None:
    """Use the stored data in every way, and write it again."""
    list(references(store.folder))
    store.entries("cpu-x")
    store.best_num_ps("cpu-x", spec_of())
    store.find("cpu-x", spec_of(), Fingerprint.from_json({"hardware": HARDWARE}))
    store.margin("cpu-x")
    store.get_least_efficiency("cpu-x", "inception3", 8)
    store.update("cpu-x", [entry_of([1.0, 1.0])])


def test_undamaged_file_is_valid() -> None:
    """The file of these tests is valid before it is damaged."""
    assert find_damage(BYTES) is None


@FEW
@given(st.integers(0, len(BYTES) - 2))
def test_truncated_file_is_refused(end: int) -> None:
    """A truncated file is refused; only its last newline may be missing."""
    message = find_damage(BYTES[:end])
    assert message is not None
    assert "no valid JSON" in message or "cannot be read" in message


@settings(FEW, max_examples=100)
@given(st.integers(0, len(BYTES) - 1), st.integers(0, 255))
def test_changed_byte_is_valid_or_refused(position: int, byte: int) -> None:
    """A file with one changed byte is valid or refused, without any other error."""
    find_damage(BYTES[:position] + bytes([byte]) + BYTES[position + 1 :])


def list_positions(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from list_positions(inner, (*path, key))


PATHS = sorted(list_positions(make_whole_file()), key=str)
KEYS = [path for path in PATHS if isinstance(path[-1], str)]
OTHERS: list[Any] = [None, True, -1, 0, 1.5, 10**400, 1e300, "", "\n", "x", [], {}, [[]], {"x": 1}, "\ud800"]


def get_inner(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path[:-1]:
        data = data[step]
    return data


@settings(FEW, max_examples=150)
@given(st.sampled_from(PATHS), st.sampled_from(OTHERS))
def test_changed_value_is_valid_or_refused(path: tuple[str | int, ...], value: Any) -> None:
    """A file with one changed value is valid or refused, without any other error."""
    data = make_whole_file()
    get_inner(data, path)[path[-1]] = value
    find_damage(json.dumps(data).encode())


@FEW
@given(st.sampled_from(KEYS), st.text(string.ascii_letters + ' =\n"\\', max_size=8))
def test_renamed_key_is_refused(path: tuple[str | int, ...], name: str) -> None:
    """A file with a renamed key is refused, except for keys that are names of software."""
    data = make_whole_file()
    position = get_inner(data, path)
    if name not in position:
        position[name] = position.pop(path[-1])
        assert find_damage(json.dumps(data).encode()) or path[-2] in ("software", "versions")


@FEW
@given(st.binary(max_size=60) | words.map(str.encode) | anything.map(lambda data: json.dumps(data).encode()))
def test_other_content_is_refused(content: bytes) -> None:
    """Content that is no file of baselines is refused."""
    assert find_damage(content) is not None
