"""What the plugin holds for a pytest process: made when the first perf test, or option, asks for it, and found again here."""

import importlib.util
import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.plugin import installed_first, xdist
from pytest_dtfperf.plugin.parametrise import Marker

if TYPE_CHECKING:  # heavy: imported when there is a perf test
    from pytest_dtfperf.plugin.adapter import SessionAdapter
    from pytest_dtfperf.plugin.dry_run import DryRun

STATE = pytest.StashKey["SessionAdapter"]()
DRY_RUN = pytest.StashKey["DryRun"]()


def state(config: pytest.Config) -> "SessionAdapter":
    """The one object that holds what this process knows.

    Raises `UsageError` if what the options, the cluster file or the baselines say cannot be.
    """
    if STATE not in config.stash:
        _begin(config)
    return config.stash[STATE]


def _begin(config: pytest.Config) -> None:
    with installed_first():
        from pytest_dtfperf.plugin.adapter import SessionAdapter, TimeLimit
        from pytest_dtfperf.plugin.display import degrade
        from pytest_dtfperf.plugin.dry_run import DryRun
        from pytest_dtfperf.plugin.session_finish import Ending
        from pytest_dtfperf.session import signals

        perf = SessionAdapter(config, xdist.session_id(config), starts(config))
        config.add_cleanup(signals.install(_exit_on_signal))
        config.add_cleanup(degrade(config))
        xdist.join(config)
        config.stash[STATE] = perf
        config.pluginmanager.register(Ending(perf), "dtfperf-ending")
        config.pluginmanager.register(TimeLimit(), "dtfperf-time-limit")
        if perf.options.dry_run:
            config.stash[DRY_RUN] = DryRun(perf)
            config.pluginmanager.register(config.stash[DRY_RUN], "dtfperf-dry-run")


def dry_run(config: pytest.Config) -> "DryRun | None":
    """What notes trainings in a dry run, where nothing else happens to them."""
    return config.stash.get(DRY_RUN, None)


def starts(config: pytest.Config) -> list[Path]:
    """Where clusters.toml is looked for: from the tests that were named on upwards, then from the project's folder.

    Tests of an installed package (`--pyargs`) lie in no project; whoever runs them has its own, which pytest was started in, or
    was told of (`-c`, `--rootdir`).
    """
    tests = list(dict.fromkeys([*_packages(config), *folders_of_tests(config)]))
    roots = [config.rootpath, *([config.inipath.parent] if config.inipath else [])]
    known = {folder for start in tests for folder in (start.resolve(), *start.resolve().parents)}
    return [*tests, *dict.fromkeys(root for root in roots if root not in known)]


def folders_of_tests(config: pytest.Config) -> list[Path]:
    """Of those that were named by a path."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    # What cannot be looked at (it is too long, or not to be read) is none: pytest itself says so. Path.is_dir would raise.
    return list(dict.fromkeys(path if os.path.isdir(path) else path.parent for path in paths))


def _packages(config: pytest.Config) -> list[Path]:
    """The folders of those that were named as packages and modules. One that cannot be found is for pytest to refuse."""
    found: list[Path] = []
    for name in (argument.partition("::")[0] for argument in config.args) if config.getoption("pyargs", False) else ():
        try:
            spec = None if os.path.exists(config.invocation_params.dir / name) else importlib.util.find_spec(name)
        except Exception:  # it imports the packages around it, as pytest will: others' code
            continue
        if spec and spec.origin:
            found.append(Path(spec.origin).parent)
    return found


def marker_of(node: pytest.Item) -> Marker:
    """The test's dtfperf marker, the nearest one deciding. Raises `UsageError`."""
    arguments: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("dtfperf"))):
        if mark.args:
            raise UsageError(f"{node.nodeid}: the dtfperf marker takes named arguments only, as in dtfperf(margin=0.05)")
        arguments |= mark.kwargs
    return Marker.read(arguments, node.nodeid)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"{signal.Signals(number).name} received: everything that was started is ended", returncode=128 + number)
