"""Files that are cut short, empty, damaged or something else: one error, with the file and where in it."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.errors import DataError, SpecError
from pytest_dtfperf.training.inputs.cifar import RECORD_BYTES, open_files
from pytest_dtfperf.training.inputs.shards import check_shards, find, reading
from pytest_dtfperf.training.inputs.share import Share
from pytest_dtfperf.training.inputs.tfrecord import check_content, masked_crc, records
from tests.training.inputs.conftest import Ask, Deliver
from tests.training.inputs.test_inputs import spec_of


def framed(content: bytes) -> bytes:
    """A record."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


GOOD = framed(b"first") + framed(b"the second")  # 21 and 26 bytes


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tmp_path / "train-00000-of-00001"


def test_our_checksums_are_tensorflows(data_dirs: dict[str, str]) -> None:
    """Every record that TensorFlow wrote is found by its header, and its content has the checksum that we compute."""
    shards = find(Path(data_dirs["imagenet"]), "train")
    found = [(path, record) for path in shards for record in records(path)]
    assert len(found) == 24
    for path, record in found:
        check_content(path, record)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "is empty: fetch or make it again"),
        (b"<!DOCTYPE html>", "is no TFRecord file: it begins with 3c 21 44 4f"),
        (GOOD[:7], "is cut short: the record at byte 0 has only 7 of its header's 12 bytes"),
        (GOOD[:20], "is cut short: the record at byte 0 ends at byte 21, the file at byte 20"),
        (GOOD[:-1], "is cut short: the record at byte 21 ends at byte 47, the file at byte 46"),
        (GOOD[:30], "is cut short: the record at byte 21 has only 9 of its header's 12 bytes"),
        (GOOD[:21] + b"\0" * 26, "is damaged: no record begins at byte 21, but 00 00"),
    ],
    ids=["empty", "a web page", "cut in the first header", "cut in the first", "cut", "cut in a header", "zeros"],
)
def test_a_bad_shard_is_refused_before_training(shard: Path, content: bytes, problem: str) -> None:
    """The message names the file and the byte where the bad record begins."""
    shard.write_bytes(content)
    with pytest.raises(DataError) as refused:
        check_shards([shard])
    assert str(refused.value).startswith(f"{shard} {problem}")


def test_a_shard_that_is_elsewhere_is_refused_before_training(shard: Path) -> None:
    """A link that leads nowhere, as to a disk that this host has not mounted, is named."""
    shard.symlink_to("/not/mounted/here")
    with pytest.raises(DataError) as refused:
        check_shards(find(shard.parent, "train"))
    assert str(refused.value) == f"{shard} cannot be read: No such file or directory"


def test_a_wrong_checksum_names_its_record(shard: Path) -> None:
    """A flipped bit in a content is found by the record's checksum."""
    shard.write_bytes(GOOD[:-6] + bytes((GOOD[-6] ^ 1,)) + GOOD[-5:])
    first, second = records(shard)
    check_content(shard, first)
    with pytest.raises(DataError, match=r"is damaged: the checksum of the record at byte 21 is wrong"):
        check_content(shard, second)


@pytest.mark.parametrize(
    "names, problem",
    [
        ([], r"has no shards, where files like train-00000-of-01024 of one set are needed.*dtfperf make-data imagenet"),
        (["train-00000-of-00002", "train-00001-of-00003"], r"has shards of several sets, of 00002, 00003"),
        (["train-00000-of-00003"], r"lacks train-00001-of-00003, train-00002-of-00003: fetch or make the set again"),
    ],
    ids=["none", "two sets", "some missing"],
)
def test_a_set_must_be_whole(tmp_path: Path, names: list[str], problem: str) -> None:
    """Shards that are missing, or of different sets, are named."""
    for name in names:
        (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(SpecError, match=problem):
        find(tmp_path, "train")


def test_a_folder_that_cannot_be_read_is_not_told_to_be_empty(tmp_path: Path) -> None:
    """The system's own words say what is wrong with it; nobody is sent to make what may well be there."""
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(SpecError) as refused:
        find(tmp_path / "round", "train")
    assert str(refused.value) == f"{tmp_path}/round cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize("shards, towers", [(1024, 1), (1024, 64), (1024, 512), (8, 3), (7, 2), (6, 4), (1, 5)])
def test_towers_read_no_more_than_they_must(shards: int, towers: int) -> None:
    """Each shard is read by some tower; by one alone where shards can be dealt out, and by none twice."""
    of_towers = [reading(shards, Share(tower, towers, 1)) for tower in range(towers)]
    read = [[shard for lane in of.lanes for shard in lane] for of in of_towers]
    assert {shard for some in read for shard in some} == set(range(shards))
    for of, some in zip(of_towers, read, strict=True):
        assert len(set(some)) == len(some)
        assert len(some) * towers == shards * of.every


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda content: content[:-1], r"data_batch_2\.bin ends within a record: the one at byte 12292 has 3072 of 3073 bytes"),
        (lambda content: b"", r"data_batch_2\.bin is empty"),
        (lambda content: b"<html>" * 512, r"data_batch_2\.bin has label 60 at byte 0, where CIFAR-10 has 0 to 9"),
        (
            lambda content: content[:RECORD_BYTES] + b"\x0b" + content[RECORD_BYTES + 1 :],
            r"data_batch_2\.bin has label 11 at byte 3073",
        ),
    ],
    ids=["cut", "empty", "a web page", "damaged"],
)
def test_a_bad_cifar_file_is_refused(
    data_dirs: dict[str, str], tmp_path: Path, change: Callable[[bytes], bytes], problem: str
) -> None:
    """The message names the file and the byte."""
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(change(Path(data_dirs["cifar10"], path.name).read_bytes()))
    with pytest.raises(SpecError, match=problem):
        open_files(tmp_path, (path.name,))


def test_a_missing_cifar_file_is_named(tmp_path: Path) -> None:
    """With all that belong to the set, and how to make one."""
    with pytest.raises(SpecError, match=r"test_batch\.bin is missing.*data_batch_5\.bin.*dtfperf make-data cifar10"):
        open_files(tmp_path, ("test_batch.bin",))


def example(**features: bytes) -> bytes:
    """As protobuf writes it: features, a map of entries with key and value; all lengths are below 128."""
    keyed = {name.replace("_", "/").encode(): value for name, value in features.items()}
    return _field(1, b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in keyed.items()))


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


def _bytes(content: bytes) -> bytes:
    return _field(1, _field(1, content))


LABEL = _field(3, _field(1, b"\x03"))
JPEG = b"\xff\xd8\xff\xe0 and no more"
BOX = [f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")]
NO_LABEL = "is no labelled image: image/class/label must be one number from 0 to 1000"


def labelled(label: bytes) -> bytes:
    return example(image_encoded=_bytes(JPEG), image_class_label=label)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "content, problem",
    [
        (b"no example at all", "is no tf.train.Example"),
        (b"\xff\xfe\0no \xc3 words", "is no tf.train.Example"),
        (example(image_class_label=LABEL), "is no labelled image: image/encoded must be a JPEG, and it is missing"),
        (
            example(image_encoded=_bytes(b"GIF89a"), image_class_label=LABEL),
            "is no labelled image: image/encoded must be a JPEG, and it is no JPEG",
        ),
        (
            example(image_encoded=_bytes(JPEG)),
            "is no labelled image: image/class/label must be one number from 0 to 1000, not missing",
        ),
        (
            example(image_encoded=_field(1, _field(1, JPEG) + _field(1, JPEG)), image_class_label=LABEL),
            "is no labelled image: image/encoded must be a JPEG, and there are 2",
        ),
        (labelled(_field(3, b"")), f"{NO_LABEL}, not missing"),
        (labelled(_field(3, _field(1, b"\x01\x02"))), f"{NO_LABEL}, not [1, 2]"),
        (labelled(_field(3, _field(1, b"\xe9\x07"))), f"{NO_LABEL}, not [1001]"),
        (labelled(_field(2, _field(1, struct.pack("<f", 3.0)))), f"{NO_LABEL}, not [3.0]"),
        (labelled(_bytes(b"cat")), f"{NO_LABEL}, not [b'cat']"),
        (
            example(image_encoded=_bytes(JPEG), image_class_label=LABEL, image_object_bbox_ymin=LABEL),
            f"is no labelled image: {', '.join(BOX)} must be as many each, not 1, 0, 0, 0",
        ),
        (example(image_encoded=_bytes(JPEG), image_class_label=LABEL), f"has a damaged JPEG of {len(JPEG)} bytes"),
    ],
    ids=[
        "not an Example", "not UTF-8", "no image", "another format", "no label", "two images", "an empty label", "two labels",
        "label out of range", "float label", "label in words", "a box without sides", "a broken JPEG",
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_foreign_record_ends_the_step_with_its_place(
    deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path, part: str, content: bytes, problem: str
) -> None:
    """Behind a good record, one that is no labelled image is found while training or testing, and named by file and byte."""
    good = find(Path(data_dirs["imagenet"]), "train")[0]
    first = next(records(good))
    path = tmp_path / f"{part}-00000-of-00001"
    path.write_bytes(good.read_bytes()[: first.end] + framed(content))
    if part == "validation":
        (tmp_path / "train-00000-of-00001").write_bytes(good.read_bytes())
    spec = spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=2, data_dir=str(tmp_path))
    delivery = deliver(Ask(spec, test_set=part == "validation"))
    assert delivery.error == "DataError", delivery.message
    assert delivery.message == f"{path}: the record at byte {first.end} {problem}. Fetch or make the file again."


def test_a_foreign_record_in_a_folder_of_any_name(deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path) -> None:
    """Quotation marks, backslashes, blanks and accents in the file's name do not hide it."""
    folder = tmp_path / 'l\'été [1] \\ "2"'
    folder.mkdir()
    good = find(Path(data_dirs["imagenet"]), "train")[0]
    first = next(records(good))
    path = folder / "train-00000-of-00001"
    path.write_bytes(good.read_bytes()[: first.end] + framed(b""))
    delivery = deliver(Ask(spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=2, data_dir=str(folder))))
    assert delivery.message.startswith(f"{path}: the record at byte {first.end} is no labelled image: "), delivery.message


def test_a_damaged_record_ends_the_step_with_its_place(deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path) -> None:
    """A bit that was flipped in the middle of one of two shards is found there."""
    shards = find(Path(data_dirs["imagenet"]), "train")[:2]
    _, second, *_ = records(shards[1])
    for number, shard in enumerate(shards):
        content = bytearray(shard.read_bytes())
        content[second.content + 9] ^= number
        (tmp_path / f"train-{number:05}-of-00002").write_bytes(content)
    spec = spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=12, data_dir=str(tmp_path))
    delivery = deliver(Ask(spec))
    assert delivery.message == (
        f"{tmp_path}/train-00001-of-00002 is damaged: the checksum of the record at byte {second.offset} is wrong. "
        "Fetch it again."
    )


def test_networks_must_look_at_colours(deliver: Deliver, data_dirs: dict[str, str]) -> None:
    """ImageNet's pictures have three channels, and a network that wants one is refused."""
    delivery = deliver(Ask(spec_of("imagenet", data_dirs), image_shape=(28, 28, 1)))
    assert delivery.error == "SpecError"
    assert "looks at images of (28, 28, 1), data=imagenet has 3 channels" in delivery.message
