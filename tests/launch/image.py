"""An image for Charliecloud: a folder with the host's programs at their paths, and other files."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("usr", "etc", "tmp", "proc", "dev", "sys", "home", "run", "var", "root", "opt", "work")


def make_image(folder: Path) -> str:
    """Make an image in a new folder. Returns the `container` of a cluster, which shows Python and the project in it."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in ("lib", "lib64", "bin", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        shutil.copy(f"/etc/{name}", folder / "etc" / name)
    paths = {Path(sys.executable).resolve().parents[1], Path(sys.prefix), Path(sys.base_prefix), ROOT}
    tops = sorted({f"/{path.parts[1]}" for path in paths} - {"/usr", "/tmp"})
    for top in tops:
        (folder / top[1:]).mkdir(exist_ok=True)
    binds = " ".join(f"-b {top}:{top}" for top in ["/usr", *tops])
    return f"ch-run {binds} {folder} --"
