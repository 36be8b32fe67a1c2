"""The tests of training and of sessions with the Pythons, pytests and TensorFlows that pyproject.toml promises: `uvx nox`.

No part of `make test`: each row installs TensorFlow and trains for minutes. docs/supported.md says which were run.
"""

import nox

nox.options.default_venv_backend = "uv"

# Python, TensorFlow, pytest: the ends of what is promised, and some between. Python 3.13 needs TensorFlow 2.20.
CELLS = [
    ("3.11", "2.18", "8.4"),
    ("3.11", "2.21", "8.4"),
    ("3.12", "2.19", "8.4"),
    ("3.13", "2.20", "9.2"),
    ("3.13", "2.21", "9.2"),
]
TESTS = ("tests/training", "tests/session")
BESIDE = (
    "pytest-xdist",
    "pytest-timeout",
    "pytest-benchmark",
    "pytest-rerunfailures",
    "hypothesis",
    "moto[server]",
    "pyzmq",
    "scikit-learn",
)


@nox.session
@nox.parametrize(("python", "tensorflow", "pytest"), CELLS)
def matrix(session: nox.Session, tensorflow: str, pytest: str) -> None:
    """One cell. Arguments behind `--` go to pytest, instead of the usual folders."""
    session.install(".[report,ec2]", f"tensorflow-cpu=={tensorflow}.*", f"pytest=={pytest}.*", *BESIDE)
    session.run("python", "-m", "pytest", "-n2", "--dist=worksteal", *(session.posargs or TESTS))
