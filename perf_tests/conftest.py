"""The fixture of these perf tests: the folder with the images of the MNIST tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mnist_dir(cluster):
    """Return the hosts' folder of the four idx files: the cluster's `data_dir`, or scikit-learn's digits in such files."""
    if "data_dir" in cluster.settings("mnist"):
        return cluster.settings("mnist")["data_dir"]
    if cluster.backend != "local":
        pytest.skip(f"no MNIST files on {cluster.name}: name their folder as models.mnist.data_dir in clusters.toml")
    from .digits import make

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return str(make(cache / "pytest-dtfperf" / "digits"))
    except ModuleNotFoundError as error:  # once the files are there, it is neither needed nor imported
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        pytest.skip("the offline data set needs scikit-learn: pip install pytest-dtfperf[digits]")
