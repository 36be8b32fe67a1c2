"""A program that makes a data set: a JSON object on stdin describes it, a line on stdout reports the result."""

import importlib
import json
import sys

if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    module = importlib.import_module(f"pytest_dtfperf.training.making.{wanted.pop('data')}")
    print(module.make(**wanted))
