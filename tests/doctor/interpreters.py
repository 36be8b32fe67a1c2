"""Virtual environments for tests, with a TensorFlow that is imported at once, another one, a broken one, or none."""

import textwrap
import venv
from pathlib import Path

SHORT_S = 0.1  # a stream from this machine to itself keeps two cores busy for as long as it lasts

SEES = """\
__version__ = {version!r}

class config:
    list_physical_devices = staticmethod(lambda kind: [kind] * {gpus})
"""


def make_interpreter(folder: Path, tensorflow: str | None = "2.21.0", *, module: str | None = None, gpus: int = 0) -> Path:
    """Make a Python in a virtual environment in `folder`. `module` is the text of its tensorflow.py, if not of a working
    one."""
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    if tensorflow:
        (packages / f"tensorflow-{tensorflow}.dist-info").mkdir()
        (packages / "tensorflow.py").write_text(textwrap.dedent(module or SEES.format(version=tensorflow, gpus=gpus)))
    return folder / "bin" / "python"
