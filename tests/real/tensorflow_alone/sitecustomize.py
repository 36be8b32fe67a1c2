"""On the path of a program, as on a host that has TensorFlow alone: what Keras would look for is not installed.

Of the CPU seconds that TensorFlow's import takes, almost half are these packages'.
"""

import sys

for name in ("matplotlib", "pandas", "scipy", "sklearn"):
    sys.modules[name] = None  # type: ignore[assignment]  # Python's own mark for "not to be had"
