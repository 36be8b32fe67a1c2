"""Count the package's files that one measurement executes on the controller: `python ci/files_touched.py [-v]`.

It trains the smallest model twice in a session of its own, and counts the files with a function that was called: from `train()`
to the end of `baseline.check()`, and in the whole session with its collection, summary, page and history.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

GOAL = 120  # files of a measurement: docs/how-a-run-works.md shows the path through them

TEST = """
def test_measurement(train, baseline, counted):
    with counted:
        baseline.check(train(model="trivial", batch_size=8, gpus=2, num_ps=1, steps=10, repeats=1))
"""

CONFTEST = """
import atexit, sys, threading
from pathlib import Path

import pytest

whole, inner = set(), set()
current = [whole]


def profile(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        _, found, path = frame.f_code.co_filename.rpartition("/pytest_dtfperf/")
        if found:
            whole.add(path)
            current[-1].add(path)


class Counted:
    def __enter__(self):
        current.append(inner)

    def __exit__(self, *error):
        current.pop()


@pytest.fixture
def counted():
    return Counted()


def write():
    sys.setprofile(None)
    for name, files in (("measurement", inner), ("session", whole)):
        Path(name).write_text("\\n".join(sorted(files)))


atexit.register(write)
threading.setprofile(profile)
sys.setprofile(profile)
"""


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_counted.py").write_text(TEST)
        Path(folder, "conftest.py").write_text(CONFTEST)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        try:
            found = {name: Path(folder, name).read_text().split("\n") for name in ("measurement", "session")}
        except OSError:
            print(done.stdout, done.stderr)
            return 1
    if "-v" in arguments:
        print("\n".join(found["measurement"]))
    print(f"files of a measurement: {len(found['measurement'])}, the goal is {GOAL}; of its session: {len(found['session'])}")
    return int(len(found["measurement"]) > GOAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
