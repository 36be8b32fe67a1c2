"""A pytest plugin: as far as this session goes, the packages that LACKING names, with commas between, are not installed."""

import os
import sys
from typing import Any

missing: dict[str, Any] = dict.fromkeys(os.environ["LACKING"].split(","))
sys.modules.update(missing)  # None is how Python notes that there is no such module
