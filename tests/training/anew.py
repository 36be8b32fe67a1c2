"""What a process finds that imports TensorFlow anew, as JSON. A program of its own: one import serves all who want one.

python -m tests.training.anew NAME...    imports these last
"""

import importlib
import json
import os
import sys

import pytest_dtfperf.training.task  # noqa: F401 - as a zygote does before it forks
from pytest_dtfperf.training.first_import import HIDDEN
from tests.training.graphs import GRAPHS

if __name__ == "__main__":
    found = {
        "imported": [name for name in HIDDEN if name in sys.modules],
        "backend": sys.modules["keras"].backend.backend(),
        "asked_for": os.environ["KERAS_BACKEND"],
        "graphs": {name: made() for name, made in GRAPHS.items()},
    }
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print(json.dumps(found), file=sys.__stdout__)
