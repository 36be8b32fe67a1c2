"""The plugin's state in a pytest process: made for the first perf test, or for an option, and stored in pytest's stash."""

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


def get_state(config: pytest.Config) -> "SessionAdapter":
    """Return the adapter of this process, which the first call makes.

    Raises:
        UsageError: the options, the cluster file or the baselines are invalid.
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

        perf = SessionAdapter(config, xdist.get_session_id(config), list_start_folders(config))
        config.add_cleanup(signals.install(_exit_on_signal))
        config.add_cleanup(degrade(config))
        xdist.note_perf_test(config)
        config.stash[STATE] = perf
        config.pluginmanager.register(Ending(perf), "dtfperf-ending")
        config.pluginmanager.register(TimeLimit(), "dtfperf-time-limit")
        if perf.options.dry_run:
            config.stash[DRY_RUN] = DryRun(perf)
            config.pluginmanager.register(config.stash[DRY_RUN], "dtfperf-dry-run")


def get_dry_run(config: pytest.Config) -> "DryRun | None":
    """Return the notes of a dry run; None outside of one."""
    return config.stash.get(DRY_RUN, None)


def list_start_folders(config: pytest.Config) -> list[Path]:
    """Return the folders in which clusters.toml is searched: from the given tests upwards, then from the project's folder.

    Tests of an installed package (`--pyargs`) are in no project; the project is then the working folder, or `-c` or
    `--rootdir`.
    """
    tests = list(dict.fromkeys([*_list_packages(config), *list_test_folders(config)]))
    roots = [config.rootpath, *([config.inipath.parent] if config.inipath else [])]
    known = {folder for start in tests for folder in (start.resolve(), *start.resolve().parents)}
    return [*tests, *dict.fromkeys(root for root in roots if root not in known)]


def list_test_folders(config: pytest.Config) -> list[Path]:
    """Return the folders of tests that are given by a path."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    # A path that cannot be read (or is too long) is no folder: pytest itself reports it. Path.is_dir would raise.
    return list(dict.fromkeys(path if os.path.isdir(path) else path.parent for path in paths))


def _list_packages(config: pytest.Config) -> list[Path]:
    """Return the folders of packages and modules that are given by name. pytest refuses unknown ones."""
    found: list[Path] = []
    for name in (argument.partition("::")[0] for argument in config.args) if config.getoption("pyargs", False) else ():
        try:
            spec = None if os.path.exists(config.invocation_params.dir / name) else importlib.util.find_spec(name)
        except Exception:  # importing packages runs foreign code, as pytest will
            continue
        if spec and spec.origin:
            found.append(Path(spec.origin).parent)
    return found


def get_marker(node: pytest.Item) -> Marker:
    """Return the test's dtfperf marker; the nearest one decides. Raises `UsageError`."""
    arguments: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("dtfperf"))):
        if mark.args:
            raise UsageError(f"{node.nodeid}: the dtfperf marker takes named arguments only, as in dtfperf(margin=0.05)")
        arguments |= mark.kwargs
    return Marker.from_arguments(arguments, node.nodeid)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"{signal.Signals(number).name} received: everything that was started is ended", returncode=128 + number)
