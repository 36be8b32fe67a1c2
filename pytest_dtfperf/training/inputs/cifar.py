"""CIFAR-10's binary format: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version". Needs no TensorFlow."""

from pathlib import Path

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.formats import candidates, folder_found, format_of

INNER_FOLDERS = ("cifar-10-batches-bin",)  # the archive's own
EDGE = 32  # pixels
CHANNELS = 3
CLASSES = 10
IMAGE_BYTES = CHANNELS * EDGE * EDGE
RECORD_BYTES = 1 + IMAGE_BYTES  # the label, then all red pixels row by row, all green ones, all blue ones

TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)


def open_files(folder: Path, names: tuple[str, ...]) -> dict[Path, int]:
    """Return the files, and how many images each holds. They are in the folder, or in cifar-10-batches-bin below it.

    Raises `SpecError` if one is missing, cut short, empty or something else.
    """
    inner = next((each for each in candidates(folder, INNER_FOLDERS) if (each / names[0]).exists()), folder)
    return {path: _images(path, folder) for path in (inner / name for name in names)}


def _images(path: Path, folder: Path) -> int:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SpecError(
            f"{path} is missing.{folder_found(folder, INNER_FOLDERS)} Set data_dir to the folder of CIFAR-10's binary version, "
            f"with {', '.join((*TRAINING_FILES, *TEST_FILES))}, or make one: dtfperf make-data cifar10 --out DIR"
        ) from None
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc}. Fetch or make it again.") from exc
    if not content:
        raise SpecError(f"{path} is empty: fetch or make it again")
    if (other := format_of(content[:64])) and content[0] >= CLASSES:
        raise SpecError(f"{path} is no file of CIFAR-10's binary version: it is {other}. Fetch or make it again.")
    _check_labels(path, content)
    images, rest = divmod(len(content), RECORD_BYTES)
    if rest:
        raise SpecError(
            f"{path} ends within a record: the one at byte {images * RECORD_BYTES} has {rest} of {RECORD_BYTES} bytes. "
            "Fetch or make it again."
        )
    return images


def _check_labels(path: Path, content: bytes) -> None:
    for at, label in enumerate(content[::RECORD_BYTES]):
        if label >= CLASSES:
            raise SpecError(
                f"{path} has label {label} at byte {at * RECORD_BYTES}, where CIFAR-10 has 0 to {CLASSES - 1}: it is not "
                "of CIFAR-10's binary version, or damaged"
            )
