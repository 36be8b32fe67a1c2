"""Read ImageNet from TFRecord files in the original layout: train-00000-of-01024, validation-00000-of-00128.

Images are JPEGs. They come uncropped, or distorted as for Inception (arXiv 1409.4842, section 6), with the numbers of
tf_cnn_benchmarks. Random numbers follow from a seed, a pair of int64, so that an image's distortion does not depend on the
worker to which it goes. While they are converted, images are (height, width, 3), float32 from 0 to 255.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.errors import DataError, SpecError
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import Share, TestSet, compute_share, damage
from pytest_dtfperf.training.inputs.damage import BOX, IMAGE, LABEL
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, convert_format, mark_unconverted, on_host, scale_around_zero
from pytest_dtfperf.training.inputs.shards import ShardReading, check_shards, find_shards, plan_reading
from pytest_dtfperf.training.models import Network

SURROUNDINGS = 1.145  # an image's edge over that of its central part: 256 / 224, rounded up

OBJECT_COVERED = 0.1  # of a bounding box, at least
ASPECT_RATIOS = (0.75, 1.33)  # of the part that is cropped
AREAS = (0.05, 1.0)  # of the part, as a fraction of the image
ATTEMPTS = 100  # to find such a part, before the whole image is used

BRIGHTNESS = 32 / 255
SATURATION = CONTRAST = (0.5, 1.5)
HUE = 0.2

_METHODS: Mapping[str, str] = {  # in round_robin's order
    "nearest": tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    "bilinear": tf.image.ResizeMethod.BILINEAR,
    "bicubic": tf.image.ResizeMethod.BICUBIC,
    "area": tf.image.ResizeMethod.AREA,
}

Size = tuple[int, int]  # height, width


def crop_centre(jpeg: tf.Tensor, size: Size, method: str, position: tf.Tensor) -> tf.Tensor:
    """Return the largest central part with the network's proportions, less a margin. Only this part is decoded."""
    height, width = size
    have = tf.cast(tf.io.extract_jpeg_shape(jpeg)[:2], tf.float32)
    scale = tf.minimum(have[0] / height, have[1] / width) / SURROUNDINGS
    part = tf.maximum(tf.cast(tf.stack([height * scale, width * scale]), tf.int32), 1)
    corner = (tf.cast(have, tf.int32) - part) // 2
    return resize_image(_decode_jpeg(jpeg, tf.concat([corner, part], 0)), size, method, position)


def distort_image(
    jpeg: tf.Tensor, boxes: tf.Tensor, size: Size, method: str, position: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Crop a random part with some of a bounding box, mirror it at random, and change its colours.

    `boxes` is (1, how many, 4): top, left, bottom, right, from 0 to 1.
    """
    corner, part, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(jpeg),
        boxes,
        _derive_seed(seed, 0),
        min_object_covered=OBJECT_COVERED,
        aspect_ratio_range=ASPECT_RATIOS,
        area_range=AREAS,
        max_attempts=ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    image = _decode_jpeg(jpeg, tf.concat([corner[:2], part[:2]], 0))
    image = tf.image.stateless_random_flip_left_right(image, _derive_seed(seed, 1))
    return _distort_colours(resize_image(image, size, method, position) / 255, position, seed) * 255


def resize_image(image: tf.Tensor, size: Size, method: str, position: tf.Tensor) -> tf.Tensor:
    """Resize an image. With round_robin, the method follows from the image's position in the sequence."""

    def resize_by(way: str) -> Callable[[], tf.Tensor]:
        return lambda: tf.cast(tf.image.resize(image, size, way), tf.float32)

    if method == "round_robin":
        return tf.ensure_shape(
            tf.switch_case(tf.cast(position % len(_METHODS), tf.int32), list(map(resize_by, _METHODS.values()))), (*size, 3)
        )
    return resize_by(_METHODS[method])()


def _distort_colours(image: tf.Tensor, position: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Change the colours of an image with values from 0 to 1. Every second image has its contrast changed first."""
    image = tf.image.stateless_random_brightness(image, BRIGHTNESS, _derive_seed(seed, 2))

    def contrast(it: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_random_contrast(it, *CONTRAST, _derive_seed(seed, 3))

    def colours(it: tf.Tensor) -> tf.Tensor:
        it = tf.image.stateless_random_saturation(it, *SATURATION, _derive_seed(seed, 4))
        return tf.image.stateless_random_hue(it, HUE, _derive_seed(seed, 5))

    image = tf.cond(tf.equal(position % 2, 0), lambda: contrast(colours(image)), lambda: colours(contrast(image)))
    return tf.clip_by_value(image, 0.0, 1.0)


def _decode_jpeg(jpeg: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Decode a window (top, left, height, width) by the fast DCT, which is exact enough for training."""
    return tf.image.decode_and_crop_jpeg(jpeg, window, channels=3, dct_method="INTEGER_FAST")


def _derive_seed(seed: tf.Tensor, number: int) -> tf.Tensor:
    """Return a seed of its own for each use."""
    return seed + tf.constant([number << 32, 0], tf.int64)


v1 = tf.compat.v1

TEST_BATCH = 50  # images per step of the evaluation; divides the original validation set of 50,000
SHUFFLED = 2048  # records of all lanes that wait in memory to be drawn from: 230 MB. The original's shards are shuffled already
READ_AHEAD = 64  # records that are read while others are decoded

_FEATURES = {
    IMAGE: tf.io.FixedLenFeature((), tf.string, default_value=""),
    LABEL: tf.io.FixedLenFeature((), tf.int64, default_value=-1),
    **{name: tf.io.VarLenFeature(tf.float32) for name in BOX},
}


class TFRecords(PipelineInput):
    """An input from TFRecord shards: shuffled, decoded, and distorted if the spec asks for it.

    Pixels are from -1 to 1, as in tf_cnn_benchmarks.
    """

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        if network.image_shape[2] != 3:
            raise SpecError(f"{order.spec.model} looks at images of {network.image_shape}, data=imagenet has 3 channels")
        self._order = order
        self._spec = order.spec
        self._host = host
        self._size = network.image_shape[:2]
        self._classes = network.classes
        self._folder = Path(order.spec.data_dir or ".")
        self._read: list[Path] = []  # shards

    def dataset(self, tower: int) -> tf.data.Dataset:
        spec, share = self._spec, compute_share(self._order, tower)
        shards = find_shards(self._folder, "train")
        mine = plan_reading(len(shards), share)
        self._check([shards[number] for lane in mine.lanes for number in lane])
        records = _make_sequence(shards, mine, spec.seed, SHUFFLED if self.shuffles else 0)
        numbered = tf.data.Dataset.zip((_make_positions(share), records.prefetch(READ_AHEAD)))
        images = numbered.map(self._distort_record, num_parallel_calls=tf.data.AUTOTUNE)
        return images.batch(spec.batch_size, drop_remainder=True).map(self._convert_batch)

    def test_set(self) -> TestSet:
        shards = find_shards(self._folder, "validation")
        self._check(shards)
        with on_host(self._host):
            paths = tf.data.Dataset.from_tensor_slices([str(shard) for shard in shards])
            numbered = tf.data.Dataset.zip((tf.data.Dataset.counter(), _read_in_turn(paths)))
            images = numbered.map(self._resize_whole, num_parallel_calls=tf.data.AUTOTUNE)
            iterator = v1.data.make_initializable_iterator(images.batch(TEST_BATCH).map(self._convert_batch).prefetch(1))
            return TestSet(iterator.initializer, *iterator.get_next())

    def explain(self, message: str) -> DataError | None:
        return damage.find_cause(message, self._read, self._classes)

    def _check(self, shards: list[Path]) -> None:
        check_shards([shard for shard in shards if shard not in self._read])
        self._read += [shard for shard in shards if shard not in self._read]

    @mark_unconverted
    def _distort_record(self, position: tf.Tensor, record: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        if not self._spec.distortions:
            return self._resize_whole(position, record)
        jpeg, label, boxes = self._parse_record(*record)
        seed = tf.stack([tf.constant(self._spec.seed, tf.int64), position])
        return distort_image(jpeg, boxes, self._size, self._spec.resize_method, position, seed), label

    @mark_unconverted
    def _resize_whole(self, position: tf.Tensor, record: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        jpeg, label, _ = self._parse_record(*record)
        return crop_centre(jpeg, self._size, self._spec.resize_method, position), label

    def _parse_record(self, path: tf.Tensor, number: tf.Tensor, content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return a record's JPEG, its label and its bounding boxes (1, boxes, 4)."""
        found = tf.io.parse_single_example(content, _FEATURES)
        jpeg, label = found[IMAGE], found[LABEL]
        sides = [tf.sparse.to_dense(found[name]) for name in BOX]
        sound = tf.io.is_jpeg(jpeg) & (label >= 0) & (label < self._classes) & _are_boxes(sides)
        with tf.control_dependencies([tf.debugging.Assert(sound, [damage.FOREIGN, path, number])]):
            return tf.identity(jpeg), tf.cast(label, tf.int32), tf.stack(sides, axis=1)[None]

    @mark_unconverted
    def _convert_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return convert_format(scale_around_zero(images), self._spec.data_format), labels


def _are_boxes(sides: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return whether there are equally many of each side, all within the image, and each minimum is less than its maximum."""
    values = tf.concat(sides, 0)
    sizes = [tf.size(side) for side in sides]
    shortest = tf.reduce_min(sizes)  # sides of different lengths must not be an error of TensorFlow's here
    top, left, bottom, right = (side[:shortest] for side in sides)
    inside = tf.reduce_all((values >= 0) & (values <= 1))
    return tf.reduce_all(tf.equal(sizes, sizes[0])) & inside & tf.reduce_all((top < bottom) & (left < right))


def _make_positions(share: Share) -> tf.data.Dataset:
    """Return the positions of a tower's images in the sequence of all images."""
    return tf.data.Dataset.counter(start=share.tower, step=share.towers)


def _make_sequence(shards: list[Path], mine: ShardReading, seed: int, shuffled: int) -> tf.data.Dataset:
    """Return an endless series of a tower's records: path of the shard, number in the shard, content.

    Args:
        shuffled: how many records of all lanes wait in memory to be drawn from.
    """
    lanes = tf.constant([[str(shards[number]) for number in lane] for lane in mine.lanes])
    count, of_lane = lanes.shape
    room = max(1, shuffled * of_lane // len(shards))

    @mark_unconverted
    def lane(number: tf.Tensor) -> tf.data.Dataset:
        paths = tf.data.Dataset.from_tensor_slices(lanes[number]).shuffle(of_lane, seed)
        return _read_in_turn(paths).shuffle(room, seed).repeat()

    return tf.data.Dataset.range(count).interleave(lane, cycle_length=count, block_length=1).shard(mine.stride, mine.offset)


def _read_in_turn(paths: tf.data.Dataset) -> tf.data.Dataset:
    """Return all records of one file after the other: path, number in the file, content."""

    @mark_unconverted
    def content(path: tf.Tensor) -> tf.data.Dataset:
        repeated_path = tf.data.Dataset.from_tensors(path).repeat()
        return tf.data.Dataset.zip((repeated_path, tf.data.Dataset.counter(), tf.data.TFRecordDataset(path)))

    return paths.flat_map(content)
