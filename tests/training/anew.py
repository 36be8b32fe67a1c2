"""Prints, as JSON, the state of a process that imports TensorFlow anew. A program of its own: one import serves all tests."""

import json
import os
import sys
from importlib.util import find_spec

import pytest_dtfperf.training.task  # noqa: F401 - as a zygote does before it forks
from pytest_dtfperf.training.first_import import HIDDEN
from tests.training.graphs import GRAPHS

if __name__ == "__main__":
    found = {
        "imported": [name for name in HIDDEN if name in sys.modules],
        "later": [name for name in HIDDEN if find_spec(name)],
        "backend": sys.modules["keras"].backend.backend(),
        "asked_for": os.environ["KERAS_BACKEND"],
        "graphs": {name: made() for name, made in GRAPHS.items()},
    }
    print(json.dumps(found), file=sys.__stdout__)
