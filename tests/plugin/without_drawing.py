"""A pytest plugin: pandas and matplotlib are not installed, as far as this session goes.

That is a supported installation (without the extra `report`), and takes a second of CPU less, of the two that a session of
toys takes.
"""

import sys

sys.modules["matplotlib"] = None  # type: ignore[assignment]  # how Python notes that there is no such module
sys.modules["pandas"] = None  # type: ignore[assignment]
