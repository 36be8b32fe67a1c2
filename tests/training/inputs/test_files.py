"""Files that are cut short, empty, damaged or something else: one error, with the file and where in it."""

import gzip
import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_dtfperf.errors import DataError, SpecError
from pytest_dtfperf.training.inputs import Share
from pytest_dtfperf.training.inputs.formats import RECORD_BYTES, TRAINING_FILES, open_cifar10, open_mnist
from pytest_dtfperf.training.inputs.shards import (
    check_content,
    check_shards,
    find_shards,
    iterate_records,
    masked_crc,
    plan_reading,
)
from tests.training.inputs.conftest import Ask, Deliver
from tests.training.inputs.test_inputs import spec_of


def make_record(content: bytes) -> bytes:
    """Return a record with its checksums."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", masked_crc(length)) + content + struct.pack("<I", masked_crc(content))


GOOD = make_record(b"first") + make_record(b"the second")  # 21 and 26 bytes


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return tmp_path / "train-00000-of-00001"


def test_our_checksums_are_tensorflows(data_dirs: dict[str, str]) -> None:
    """Every record that TensorFlow wrote is found by its header, and its content has the checksum that we compute."""
    shards = find_shards(Path(data_dirs["imagenet"]), "train")
    found = [(path, record) for path in shards for record in iterate_records(path)]
    assert len(found) == 24
    for path, record in found:
        check_content(path, record)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "is empty: fetch or make it again"),
        (b"\x01\x02\x03\x04 not known", "is no TFRecord file: it begins with 01 02 03 04"),
        (GOOD[:7], "is cut short: the record at byte 0 has only 7 of its header's 12 bytes"),
        (GOOD[:20], "is cut short: the record at byte 0 ends at byte 21, the file at byte 20"),
        (GOOD[:-1], "is cut short: the record at byte 21 ends at byte 47, the file at byte 46"),
        (GOOD[:30], "is cut short: the record at byte 21 has only 9 of its header's 12 bytes"),
        (GOOD[:21] + b"\0" * 26, "is damaged: no record begins at byte 21, but 00 00"),
    ],
    ids=["empty", "something else", "cut in the first header", "cut in the first", "cut", "cut in a header", "zeros"],
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
        check_shards(find_shards(shard.parent, "train"))
    assert str(refused.value) == f"{shard} cannot be read: No such file or directory"


def test_a_wrong_checksum_names_its_record(shard: Path) -> None:
    """A flipped bit in a content is found by the record's checksum."""
    shard.write_bytes(GOOD[:-6] + bytes((GOOD[-6] ^ 1,)) + GOOD[-5:])
    first, second = iterate_records(shard)
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
        find_shards(tmp_path, "train")


@pytest.mark.parametrize("end", ["", ".tfrecord", ".tfrecords"])
@pytest.mark.parametrize("inner", ["", "train"])
def test_shards_may_have_an_ending_and_a_folder_of_their_own(tmp_path: Path, inner: str, end: str) -> None:
    """Shards named as people name them are found, in their order: with an ending, and in a folder of the part's name."""
    (tmp_path / inner).mkdir(exist_ok=True)
    paths = [tmp_path / inner / f"train-{number:05}-of-00002{end}" for number in range(2)]
    for path in paths:
        path.write_bytes(GOOD)
    assert find_shards(tmp_path, "train") == paths


@pytest.mark.parametrize(
    "name, what",
    [
        ("imagenet2012-train.tfrecord-00000-of-01024", "TFRecord files of TensorFlow Datasets, with other keys"),
        ("train/n01440764", "a folder of JPEGs for each class, as torchvision reads them"),
        ("train-00000-of-00294.parquet", "Parquet files, as of Hugging Face"),
        ("ILSVRC2012_img_train.tar", "an archive: unpack it"),
        ("notes.txt", "notes.txt"),
    ],
)
def test_folder_without_shards_is_described(tmp_path: Path, name: str, what: str) -> None:
    """A folder with another data set, or with this one in another format, is refused with what it has."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(SpecError) as refused:
        find_shards(tmp_path, "train")
    assert f"of one set are needed. The folder has {what}" in str(refused.value)


@pytest.mark.parametrize(
    "beginning, what",
    [
        (gzip.compress(GOOD), "compressed with gzip"),
        (zlib.compress(GOOD), "compressed with zlib"),
        (b"\xef\xbb\xbf\n<HTML lang=de>sign in", "an HTML page, as servers send in place of a file"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied', "an XML document, as object stores send in place of a file"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer, and not the file: run git lfs pull"),
        (b"PAR1\x15\x04\x15\x10\x15\x14 and more", "a Parquet file"),
    ],
    ids=["gzip", "zlib", "a web page", "XML", "Git LFS", "Parquet"],
)
def test_other_format_of_a_shard_is_named(shard: Path, beginning: bytes, what: str) -> None:
    """A file that is no TFRecord file, but a known format, is called that."""
    shard.write_bytes(beginning)
    with pytest.raises(DataError) as refused:
        check_shards([shard])
    assert str(refused.value).startswith(f"{shard} is no TFRecord file: it is {what}. ")


def idx(*shape: int) -> bytes:
    """An idx file of zeros."""
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + bytes(math.prod(shape))


IDX = {"images": idx(4, 28, 28), "labels": idx(4)}
DOTTED = {"images": "train-images.idx3-ubyte", "labels": "train-labels.idx1-ubyte"}
PUBLISHED = {"images": "train-images-idx3-ubyte", "labels": "train-labels-idx1-ubyte"}


@pytest.mark.parametrize("inner", ["", "MNIST/raw", "raw", "mnist"])
@pytest.mark.parametrize("names", [PUBLISHED, DOTTED], ids=["published", "with a dot"])
@pytest.mark.parametrize(
    "end, is_gzip",
    [("", False), (".gz", True), ("", True), (".gz", False)],
    ids=["plain", "gzip", "gzip without .gz", "plain with .gz"],
)
def test_mnist_is_found_by_its_published_names(
    tmp_path: Path, names: dict[str, str], inner: str, end: str, is_gzip: bool
) -> None:
    """The four files are read by any of their published names, and as gzip by their content."""
    folder = tmp_path / inner
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in IDX.items():
        (folder / f"{names[part]}{end}").write_bytes(gzip.compress(content) if is_gzip else content)
    images, labels = open_mnist(tmp_path, "train", (28, 28, 1), 10)
    assert (images.path, labels.path) == tuple(folder / f"{names[part]}{end}" for part in IDX)
    assert (images.shape, labels.shape) == ((4, 28, 28), (4,))
    assert {images.is_gzip, labels.is_gzip} == {is_gzip}


@pytest.mark.parametrize("name", ["train-images.idx3-ubyte", "train-images-idx3-ubyte.gz"])
def test_mnist_of_any_name_trains(deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path, name: str) -> None:
    """TensorFlow reads the same images from a compressed file without .gz and from a plain one with .gz."""
    source = Path(data_dirs["mnist"])
    for each in source.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    (images,) = tmp_path.glob("train-images*")
    content = gzip.decompress(images.read_bytes())
    images.unlink()
    (tmp_path / name).write_bytes(content if name.endswith(".gz") else gzip.compress(content))
    spec = spec_of("mnist", data_dirs, gpus=1, num_ps=0, batch_size=4)
    assert deliver(Ask(spec.replace(data_dir=str(tmp_path)))).step(0) == deliver(Ask(spec)).step(0)


@pytest.mark.parametrize(
    "name, what",
    [
        ("mnist.npz", "mnist.npz, Keras' copy of MNIST"),
        ("mnist-train.tfrecord-00000-of-00001", "TFRecord files of TensorFlow Datasets"),
        ("raw/train-images.parquet", "Parquet files, as of Hugging Face"),
        ("a.txt", "a.txt"),
    ],
)
def test_folder_without_mnist_is_described(tmp_path: Path, name: str, what: str) -> None:
    """A folder without MNIST's files is refused with its content, the expected names, and the command that makes a set."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(SpecError) as refused:
        open_mnist(tmp_path, "train", (28, 28, 1), 10)
    names = f"{tmp_path} has neither train-images-idx3-ubyte nor train-images.idx3-ubyte, with or without .gz."
    assert str(refused.value).startswith(f"{names} The folder has {what}")
    assert str(refused.value).endswith("or make one: dtfperf make-data mnist --out DIR")


def test_web_page_in_place_of_mnist_is_named(tmp_path: Path) -> None:
    """A web page in place of a file is named as such."""
    path = tmp_path / PUBLISHED["images"]
    path.write_bytes(b"<!DOCTYPE html><title>Moved</title>")
    with pytest.raises(SpecError, match=r"it is an HTML page, as servers send in place of a file\. Fetch or make it again"):
        open_mnist(tmp_path, "train", (28, 28, 1), 10)


def test_cifar_is_found_in_its_archives_folder(data_dirs: dict[str, str], tmp_path: Path) -> None:
    """The folder that CIFAR-10's archive unpacks to may be the data set's, or be in it."""
    inner = tmp_path / "cifar-10-batches-bin"
    inner.symlink_to(data_dirs["cifar10"])
    assert list(open_cifar10(tmp_path, TRAINING_FILES)) == [inner / name for name in TRAINING_FILES]


@pytest.mark.parametrize(
    "name, what",
    [
        ("cifar-10-batches-py", "CIFAR-10's version for Python"),
        ("data_batch_1", "CIFAR-10's version for Python"),
        ("cifar-10-python.tar.gz", "the archive of CIFAR-10's version for Python"),
        ("cifar-10-binary.tar.gz", "an archive: unpack it"),
    ],
)
def test_folder_without_binary_cifar_is_described(tmp_path: Path, name: str, what: str) -> None:
    """A folder with another version of CIFAR-10, or with archives, is refused with its content."""
    (tmp_path / name).touch()
    with pytest.raises(SpecError) as refused:
        open_cifar10(tmp_path, TRAINING_FILES)
    assert f"data_batch_1.bin is missing. The folder has {what}. Set data_dir" in str(refused.value)


def test_unreadable_folder_is_reported_with_the_systems_error(tmp_path: Path) -> None:
    """An unreadable folder is refused with the system's error, without advice to make a data set."""
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(SpecError) as refused:
        find_shards(tmp_path / "round", "train")
    assert str(refused.value) == f"{tmp_path}/round cannot be read: Too many levels of symbolic links"


@pytest.mark.parametrize("shards, towers", [(1024, 1), (1024, 64), (1024, 512), (8, 3), (7, 2), (6, 4), (1, 5)])
def test_towers_read_no_more_than_they_must(shards: int, towers: int) -> None:
    """Each shard is read by some tower; by one alone where shards can be dealt out, and by none twice."""
    of_towers = [plan_reading(shards, Share(tower, towers, 1)) for tower in range(towers)]
    read = [[shard for lane in tower.lanes for shard in lane] for tower in of_towers]
    assert {shard for some in read for shard in some} == set(range(shards))
    for tower, some in zip(of_towers, read, strict=True):
        assert len(set(some)) == len(some)
        assert len(some) * towers == shards * tower.stride


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda content: content[:-1], r"data_batch_2\.bin ends within a record: the one at byte 12292 has 3072 of 3073 bytes"),
        (lambda content: b"", r"data_batch_2\.bin is empty"),
        (lambda content: b"<html>" * 512, r"data_batch_2\.bin is no file of CIFAR-10's binary version: it is an HTML page"),
        (lambda content: b"\x3c" * 3073, r"data_batch_2\.bin has label 60 at byte 0, where CIFAR-10 has 0 to 9"),
        (
            lambda content: content[:RECORD_BYTES] + b"\x0b" + content[RECORD_BYTES + 1 :],
            r"data_batch_2\.bin has label 11 at byte 3073",
        ),
    ],
    ids=["cut", "empty", "a web page", "something else", "damaged"],
)
def test_a_bad_cifar_file_is_refused(
    data_dirs: dict[str, str], tmp_path: Path, change: Callable[[bytes], bytes], problem: str
) -> None:
    """The message names the file and the byte."""
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(change(Path(data_dirs["cifar10"], path.name).read_bytes()))
    with pytest.raises(SpecError, match=problem):
        open_cifar10(tmp_path, (path.name,))


def test_missing_cifar_file_is_named(tmp_path: Path) -> None:
    """A missing file is named with all files of the set, and with the command that makes one."""
    with pytest.raises(SpecError, match=r"test_batch\.bin is missing.*data_batch_5\.bin.*dtfperf make-data cifar10"):
        open_cifar10(tmp_path, ("test_batch.bin",))


def example(**features: bytes) -> bytes:
    """Return an Example as protobuf writes it: features, a map of entries with key and value."""
    keyed = {name.replace("_", "/").encode(): value for name, value in features.items()}
    return _field(1, b"".join(_field(1, _field(1, key) + _field(2, value)) for key, value in keyed.items()))


def _field(number: int, content: bytes) -> bytes:
    length, rest = b"", len(content)
    while rest > 127:  # a varint: seven bits a byte, the lowest first
        length, rest = length + bytes((rest & 127 | 128,)), rest >> 7
    return bytes((number << 3 | 2,)) + length + bytes((rest,)) + content


def _bytes(content: bytes) -> bytes:
    return _field(1, _field(1, content))


LABEL = _field(3, _field(1, b"\x03"))
JPEG = b"\xff\xd8\xff\xe0 and no more"
BOX = [f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax")]
BAD_BOX, BOX_RULE = "is no labelled image: bounding box 0", "Each minimum must be less than its maximum"
NO_LABEL = "is no labelled image: image/class/label must be one number from 0 to 1000"


def make_labelled_example(label: bytes) -> bytes:
    return example(image_encoded=_bytes(JPEG), image_class_label=label)


def make_boxed_example(*sides: float) -> bytes:
    """Return an Example with one bounding box: top, left, bottom, right."""
    keys = [name.replace("/", "_") for name in BOX]
    boxes = {key: _field(2, _field(1, struct.pack("<f", side))) for key, side in zip(keys, sides, strict=True)}
    return example(image_encoded=_bytes(JPEG), image_class_label=LABEL, **boxes)


@pytest.mark.campaign(part=5)
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
        (make_labelled_example(_field(3, b"")), f"{NO_LABEL}, not missing"),
        (make_labelled_example(_field(3, _field(1, b"\x01\x02"))), f"{NO_LABEL}, not [1, 2]"),
        (make_labelled_example(_field(3, _field(1, b"\xe9\x07"))), f"{NO_LABEL}, not [1001]"),
        (make_labelled_example(_field(2, _field(1, struct.pack("<f", 3.0)))), f"{NO_LABEL}, not [3.0]"),
        (make_labelled_example(_bytes(b"cat")), f"{NO_LABEL}, not [b'cat']"),
        (
            example(image_encoded=_bytes(JPEG), image_class_label=LABEL, image_object_bbox_ymin=LABEL),
            f"is no labelled image: {', '.join(BOX)} must be as many each, not 1, 0, 0, 0",
        ),
        (
            make_boxed_example(0.75, 0.25, 0.5, 0.5),
            f"{BAD_BOX} is inverted: ymin 0.75 and ymax 0.5, xmin 0.25 and xmax 0.5. {BOX_RULE}",
        ),
        (
            make_boxed_example(0.25, 0.5, 0.75, 0.5),
            f"{BAD_BOX} is empty: ymin 0.25 and ymax 0.75, xmin 0.5 and xmax 0.5. {BOX_RULE}",
        ),
        (example(image_encoded=_bytes(JPEG), image_class_label=LABEL), f"has a damaged JPEG of {len(JPEG)} bytes"),
    ],
    ids=[
        "not an Example", "not UTF-8", "no image", "another format", "no label", "two images", "an empty label", "two labels",
        "label out of range", "float label", "label in words", "a box without sides", "an inverted box", "an empty box",
        "a broken JPEG",
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", ["train", "validation"])
def test_a_foreign_record_ends_the_step_with_its_place(
    deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path, part: str, content: bytes, problem: str
) -> None:
    """Behind a good record, one that is no labelled image is found while training or testing, and named by file and byte."""
    good = find_shards(Path(data_dirs["imagenet"]), "train")[0]
    first = next(iterate_records(good))
    path = tmp_path / f"{part}-00000-of-00001"
    path.write_bytes(good.read_bytes()[: first.end] + make_record(content))
    if part == "validation":
        (tmp_path / "train-00000-of-00001").write_bytes(good.read_bytes())
    spec = spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=2, data_dir=str(tmp_path))
    delivery = deliver(Ask(spec, test_set=part == "validation"))
    assert delivery.error == "DataError", delivery.message
    assert delivery.message == f"{path}: the record at byte {first.end} {problem}. Fetch or make the file again."


def _cut_in_half(jpeg: bytes) -> bytes:
    return jpeg[: len(jpeg) // 2]


def _without_its_end(jpeg: bytes) -> bytes:
    return jpeg[:-2]


def _cut_in_its_header(jpeg: bytes) -> bytes:
    return jpeg[: jpeg.index(b"\xff\xc0") + 4]


def _zeros_from_the_middle(jpeg: bytes) -> bytes:
    return jpeg[: len(jpeg) // 4] + bytes(len(jpeg) - len(jpeg) // 4)


def _wrong_huffman_table(jpeg: bytes) -> bytes:
    table = jpeg.index(b"\xff\xc4") + 5
    return jpeg[:table] + b"\xff" * 16 + jpeg[table + 16 :]


def _flipped_bits(jpeg: bytes) -> bytes:
    flipped = bytearray(jpeg)
    for at in range(len(jpeg) // 2, len(jpeg), 7):
        flipped[at] ^= 0x41
    return bytes(flipped)


def _of_no_size(jpeg: bytes) -> bytes:
    size = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:size] + bytes(4) + jpeg[size + 4 :]


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("distortions", [False, True], ids=["whole", "distorted"])
@pytest.mark.parametrize(
    "damage",
    [
        _cut_in_half, _without_its_end, _cut_in_its_header, _zeros_from_the_middle, _wrong_huffman_table, _flipped_bits,
        _of_no_size,
    ],
)  # fmt: skip
def test_damaged_jpeg_is_located(
    deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path, damage: Callable[[bytes], bytes], distortions: bool
) -> None:
    """A damaged JPEG among good records is named by file and byte, for each kind of damage."""
    good = find_shards(Path(data_dirs["imagenet"]), "train")[0]
    first = next(iterate_records(good))
    content = good.read_bytes()[first.content : first.content + first.length]
    jpeg = content[content.index(b"\xff\xd8\xff") : content.rindex(b"\xff\xd9") + 2]
    bad = damage(jpeg)
    of_its_size = jpeg[:-2] + bytes(max(0, len(bad) - len(jpeg))) + jpeg[-2:]
    decoy, broken = (make_record(example(image_encoded=_bytes(each), image_class_label=LABEL)) for each in (of_its_size, bad))
    (tmp_path / "train-00000-of-00001").write_bytes(good.read_bytes() + decoy + broken + decoy)
    spec = spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=24, data_dir=str(tmp_path), distortions=distortions)
    delivery = deliver(Ask(spec, steps=4))
    at = good.stat().st_size + len(decoy)
    assert delivery.message == (
        f"{tmp_path}/train-00000-of-00001: the record at byte {at} has a damaged JPEG of {len(bad)} bytes. "
        "Fetch or make the file again."
    )


def test_a_foreign_record_in_a_folder_of_any_name(deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path) -> None:
    """Quotation marks, backslashes, blanks and accents in the file's name do not hide it."""
    folder = tmp_path / 'l\'été [1] \\ "2"'
    folder.mkdir()
    good = find_shards(Path(data_dirs["imagenet"]), "train")[0]
    first = next(iterate_records(good))
    path = folder / "train-00000-of-00001"
    path.write_bytes(good.read_bytes()[: first.end] + make_record(b""))
    delivery = deliver(Ask(spec_of("imagenet", data_dirs, gpus=1, num_ps=0, batch_size=2, data_dir=str(folder))))
    assert delivery.message.startswith(f"{path}: the record at byte {first.end} is no labelled image: "), delivery.message


def test_a_damaged_record_ends_the_step_with_its_place(deliver: Deliver, data_dirs: dict[str, str], tmp_path: Path) -> None:
    """A bit that was flipped in the middle of one of two shards is found there."""
    shards = find_shards(Path(data_dirs["imagenet"]), "train")[:2]
    _, second, *_ = iterate_records(shards[1])
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


def test_network_with_one_channel_is_refused(deliver: Deliver, data_dirs: dict[str, str]) -> None:
    """A network for images with one channel is refused with data=imagenet."""
    delivery = deliver(Ask(spec_of("imagenet", data_dirs), image_shape=(28, 28, 1)))
    assert delivery.error == "SpecError"
    assert "looks at images of (28, 28, 1), data=imagenet has 3 channels" in delivery.message
