"""What the plugin holds for a pytest process: made when the first perf test, or option, asks for it, and found again here."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.plugin import xdist
from pytest_dtfperf.plugin.parametrise import Marker

if TYPE_CHECKING:  # heavy: imported when there is a perf test
    from pytest_dtfperf.plugin.dry_run import DryRun
    from pytest_dtfperf.plugin.state import PerfSession

STATE = pytest.StashKey["PerfSession"]()
DRY_RUN = pytest.StashKey["DryRun"]()


def state(config: pytest.Config) -> "PerfSession":
    """The one object that holds what this process knows.

    Raises `UsageError` if what the options, the cluster file or the baselines say cannot be.
    """
    if STATE not in config.stash:
        from pytest_dtfperf.plugin import signals
        from pytest_dtfperf.plugin.dry_run import DryRun
        from pytest_dtfperf.plugin.ending import Ending
        from pytest_dtfperf.plugin.state import PerfSession

        perf = PerfSession(config, xdist.session_id(config), starts(config))
        perf.check()
        config.add_cleanup(signals.install())
        xdist.join(config)
        config.stash[STATE] = perf
        config.pluginmanager.register(Ending(perf), "dtfperf-ending")
        if perf.options.dry_run:
            config.stash[DRY_RUN] = DryRun(perf)
            config.pluginmanager.register(config.stash[DRY_RUN], "dtfperf-dry-run")
    return config.stash[STATE]


def dry_run(config: pytest.Config) -> "DryRun | None":
    """What notes trainings in a dry run, where nothing else happens to them."""
    return config.stash.get(DRY_RUN, None)


def starts(config: pytest.Config) -> list[Path]:
    """The folders of the tests that were named."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    # What cannot be looked at (it is too long, or not to be read) is none: pytest itself says so. Path.is_dir would raise.
    return list(dict.fromkeys(path if os.path.isdir(path) else path.parent for path in paths))


def marker_of(node: pytest.Item) -> Marker:
    """The test's dtfperf marker, the nearest one deciding. Raises `UsageError`."""
    arguments: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("dtfperf"))):
        if mark.args:
            raise UsageError(f"{node.nodeid}: the dtfperf marker takes named arguments only, as in dtfperf(margin=0.05)")
        arguments |= mark.kwargs
    return Marker.read(arguments, node.nodeid)
