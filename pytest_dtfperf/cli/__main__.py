"""`python -m pytest_dtfperf.cli` is `dtfperf`."""

import sys

from pytest_dtfperf.cli import main

sys.exit(main())
