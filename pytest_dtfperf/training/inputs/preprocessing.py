"""Convert a JPEG to a network's image: uncropped, or distorted as for Inception (arXiv 1409.4842, section 6).

Numbers are tf_cnn_benchmarks'. Random numbers follow from a seed, a pair of int64, so that an image's distortion does not
depend on which worker it went to. Images are (height, width, 3), float32 from 0 to 255.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf

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

    def by(way: str) -> Callable[[], tf.Tensor]:
        return lambda: tf.cast(tf.image.resize(image, size, way), tf.float32)

    if method == "round_robin":
        return tf.ensure_shape(
            tf.switch_case(tf.cast(position % len(_METHODS), tf.int32), list(map(by, _METHODS.values()))), (*size, 3)
        )
    return by(_METHODS[method])()


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
