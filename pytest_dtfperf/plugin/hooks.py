"""The hooks that pytest calls, and the fixtures `cluster`, `train` and `baseline`.

Every pytest run on the machine loads this, so heavy modules are imported only for perf tests.
"""

import json
import os
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtfperf.errors import DtfPerfError, InfrastructureError, InvalidMeasurement, UsageError
from pytest_dtfperf.plugin import hookspecs, installed_first, plugin_state, xdist
from pytest_dtfperf.plugin import options as command_line
from pytest_dtfperf.plugin.outcome import (
    TRAINED,
    UNDECIDED,
    VERDICT,
    find_line,
    forget_verdict,
    get_verdict,
    is_accepted,
    note_skip,
)
from pytest_dtfperf.plugin.parametrise import NAMES, TOO_FEW, identify, is_value, make_combinations
from pytest_dtfperf.plugin.plugin_state import STATE, get_marker, get_state
from pytest_dtfperf.plugin.xdist import NOTED, PROBLEM_KEY, PROGRESS, SESSION, UNWRITTEN, USED, get_session_id

if TYPE_CHECKING:  # heavy: imported when there is a perf test
    from pytest_dtfperf.plugin.adapter import SessionAdapter
    from pytest_dtfperf.plugin.fixture_objects import Baseline, Train
    from pytest_dtfperf.session.allocation_manager import ClusterInfo

Status = tuple[str, str, str | tuple[str, Mapping[str, bool]]]  # category, letter, word, in pytest's form
PROBLEM = pytest.StashKey[str]()
FIXTURES = frozenset({"cluster", "train", "baseline"})
VERDICTS_OF_ERRORS = {InfrastructureError: "INFRASTRUCTURE", InvalidMeasurement: "INVALID"}


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    command_line.add_options(parser)
    command_line.add_short_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, None, None]:
    """Expand short names of options once all plugins and initial conftests have registered theirs."""
    command_line.write_out_long(early_config, parser, args)
    try:
        try:
            yield
        except Exception:
            # The error may come from the conftest of another project that is the value of an option.
            command_line.keep_root(early_config, command_line.find_unregistered(early_config, parser, args))
            raise
        command_line.write_out(early_config, parser, args)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "dtfperf(margin, efficiency, checks, min_gpus, gpus, num_ps, variable_update): settings of a perf test: the largest "
        "allowed loss of rate, the smallest allowed efficiency, the number of its checks, and its default parameters",
    )
    if config.getoption("xmlpath", None):
        from pytest_dtfperf.plugin.outcome import JunitErrors

        config.pluginmanager.register(JunitErrors(config), "dtfperf-junit")
    given = command_line.is_given(config)
    if not given and not _has_clusters_file(config):
        return
    try:
        get_state(config)
    except UsageError as error:
        if given:
            raise pytest.UsageError(str(error)) from None
        # A file of this name may belong to another program. It is refused when a perf test is collected.


def _has_clusters_file(config: pytest.Config) -> bool:
    """Return whether there is a clusters.toml beside the tests; it is not read."""
    return any(os.path.exists(folder / "clusters.toml") for folder in plugin_state.list_test_folders(config))


def is_perf_test(item: pytest.Item) -> bool:
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for the providers of a test's fixtures
    return info is not None and _uses_this_plugin(info.name2fixturedefs)


def _uses_this_plugin(providers: Mapping[str, Sequence[pytest.FixtureDef[Any]]]) -> bool:
    """Return whether one of these fixtures is among a test's: other packages have a `cluster`, too.

    Args:
        providers: by name, the nearest last.
    """
    return any(_is_of_this_plugin(name, providers[name]) for name in FIXTURES & providers.keys())


def _is_of_this_plugin(name: str, providers: Sequence[pytest.FixtureDef[Any]]) -> bool:
    for provider in reversed(providers):
        if provider.func.__module__ == __name__:
            return True
        if name not in provider.argnames:  # a fixture with its own name as a parameter extends the one before it
            break
    return False


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise by devices, parameter servers and variable update: only the names in the test's signature."""
    if not _uses_this_plugin(metafunc._arg2fixturedefs):
        return
    # Not names that the test itself sets, by a mark or a hook, which pytest has applied by now, or by a fixture of that name.
    asked = [name for name in NAMES if name in metafunc.fixturenames and name not in metafunc._arg2fixturedefs]
    try:
        marker = get_marker(metafunc.definition)
        found = make_combinations(asked, get_state(metafunc.config).options, marker, get_state(metafunc.config).cluster.devices)
    except UsageError as error:
        # An exception here would become this module's collection error, with a traceback. It is reported once, below.
        metafunc.config.stash.setdefault(PROBLEM, str(error))
        return
    if asked:
        # A test without any is deselected below, with its reason in the summary; pytest would skip it silently.
        values = [tuple(combination[name] for name in asked) for combination in found] or [(TOO_FEW,) * len(asked)]
        metafunc.parametrize(asked, values, ids=[identify(combination) for combination in found] or ["none"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that the cluster has no room for, and note the reasons."""
    perf_tests = [item for item in items if is_perf_test(item)]
    if perf_tests:
        try:
            get_state(config)
        except UsageError as error:  # of tests that pytest does not parametrise: unittest's
            config.stash.setdefault(PROBLEM, str(error))
    if PROBLEM in config.stash:
        xdist.refuse(config, items, config.stash[PROBLEM])
        return
    if not perf_tests:
        return
    perf = get_state(config)
    kept, too_large = [], []
    for item in items:
        reason = _explain_skip(perf, item) if is_perf_test(item) else None
        if reason:
            too_large.append(item)
            perf.deselected[reason] = perf.deselected.get(reason, 0) + 1
        else:
            kept.append(item)
    if too_large:
        config.hook.pytest_deselected(items=too_large)
    items[:] = _sort_by_cost(perf, kept) if perf.session.time_budget else kept


def _sort_by_cost(perf: "SessionAdapter", items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items with perf tests from cheap to expensive, in the positions of perf tests."""
    ordered = iter(sorted(filter(is_perf_test, items), key=lambda item: perf.estimate_cost(item.nodeid, _get_parameters(item))))
    return [next(ordered) if is_perf_test(item) else item for item in items]


@pytest.hookimpl(tryfirst=True)  # before xdist's worker sends its collection
def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the tests that are selected in the end: they determine how many hosts the session needs."""
    tests = [item for item in session.items if is_perf_test(item)]
    if not tests or PROBLEM in session.config.stash:
        return
    perf = get_state(session.config)
    perf.expect([item.nodeid for item in tests], [_get_parameters(item) for item in tests])
    if session.config.option.collectonly:
        return
    if not perf.options.dry_run:
        session.config.pluginmanager.register(perf.display, "dtfperf-display")
    try:
        perf.check_runnable()
    except UsageError as error:
        xdist.refuse(session.config, session.items, str(error))


def _explain_skip(perf: "SessionAdapter", item: pytest.Item) -> str | None:
    """Return why a test cannot run, or None."""
    parameters = _get_parameters(item)
    if any(value is TOO_FEW for value in _get_all_parameters(item).values()):
        asked = ",".join(map(str, perf.options.gpus or (perf.cluster.devices,)))
        return f"for min_gpus={get_marker(item).min_gpus} devices and more, gpus={asked} is too few"
    return perf.explain_skip(parameters)


def _get_parameters(item: pytest.Item) -> Mapping[str, Any]:
    """Return the parameters that determine a test's requirements; a test's own may have other meanings."""
    return {name: value for name, value in _get_all_parameters(item).items() if is_value(name, value)}


def _get_all_parameters(item: pytest.Item) -> Mapping[str, Any]:
    parameters: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return parameters


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    if STATE not in config.stash:
        return None
    header, reporter = config.stash[STATE].header(), config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or not reporter.isatty:  # in a log, a line must be complete
        return [header]
    with installed_first():
        from pytest_dtfperf.report.progress import wrap_line

    return wrap_line(header, reporter._tw.fullwidth)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Return a warning if the allowed runs cannot confirm a loss, before any training."""
    if STATE not in config.stash:
        return None
    with installed_first():
        return config.stash[STATE].format_repeats_warning()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remove the verdict of an earlier attempt, as of pytest-rerunfailures."""
    if is_perf_test(item):
        forget_verdict(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show an error of this package without a traceback, and distinguish a broken cluster from a slow one."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, DtfPerfError) and is_perf_test(item) and call.excinfo:
        line = find_line(item, call.excinfo)
        report.longrepr = f"{error}\n\n{line}: {type(error).__name__}" if line else str(error)
        verdict = next((word for kind, word in VERDICTS_OF_ERRORS.items() if isinstance(error, kind)), None)
        if verdict:
            item.user_properties.append((VERDICT, verdict))
            report.user_properties = list(item.user_properties)
    if is_perf_test(item) and (lost := get_state(item.config).session.write_error):
        item.session.shouldstop = lost  # further measurements could not be stored either
    if report.skipped and not hasattr(report, "wasxfail") and is_perf_test(item):
        note_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Warn of a test that takes `train` and has not called it."""
    result = yield
    if _is_untrained(item):
        item.warn(pytest.PytestWarning(f"{item.nodeid} takes `train` and has trained nothing: call it, or leave it out"))
    return result


def _is_untrained(item: pytest.Item) -> bool:
    """Return whether a test takes `train` itself, and has not called it."""
    if TRAINED in item.stash or not is_perf_test(item):
        return False
    info = item._fixtureinfo  # type: ignore[attr-defined]  # as in `is_perf_test`
    return "train" in info.argnames and _is_of_this_plugin("train", info.name2fixturedefs.get("train", ()))


@pytest.hookimpl(wrapper=True)
def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> Generator[None, Status | None, Status | None]:
    """Show a cluster that failed as an error, and count a pass without a decision separately.

    Tests that are xfailed, xpassed, subtests or reruns are shown as pytest, or another plugin, shows them.
    """
    status = yield
    verdict = get_verdict(report)
    if status is None or verdict is None or report.when != "call" or status[2] not in ("PASSED", "FAILED"):
        return status
    outcome = verdict.outcome(strict=False)
    if report.failed:
        failed = ("error", "E", f"ERROR ({verdict})") if outcome == "error" else ("failed", "F", f"FAILED ({verdict})")
        return status if outcome == "pass" else failed  # failed for another reason than its verdict
    if is_accepted(report) and verdict.may_become_baseline:  # a graver verdict of another check prevents that
        return "passed", ".", f"PASSED ({verdict.when_accepted})"
    if outcome == "warn":
        return UNDECIDED, "u", (f"PASSED ({verdict})", {"yellow": True})
    return status if verdict == report.outcome.upper() else ("passed", ".", f"PASSED ({verdict})")


# pytest-xdist's controller: it sets the session's id, shows the workers' progress, and accepts their measurements.
# Its hooks are optional: only xdist calls them.


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send a worker the session's id before it starts. Called in the controller."""
    node.workerinput[SESSION] = get_session_id(node.config)
    _relay(node)


def _relay(node: Any) -> None:
    """Pass a worker's progress on to the controller's main thread, which alone writes to the terminal.

    xdist has no public interface for a plugin's messages while tests run. Without this one, no progress is shown.
    """
    distributed = node.config.pluginmanager.getplugin("dsession")
    receive, pass_on = getattr(node, "process_from_remote", None), getattr(node, "notify_inproc", None)
    if distributed is None or receive is None or pass_on is None:
        return

    def receive_event(event: Any) -> None:
        if isinstance(event, tuple) and event[0] == PROGRESS:
            pass_on(PROGRESS, node=node, **event[1])
        else:
            receive(event)

    node.process_from_remote = receive_event
    setattr(distributed, f"worker_{PROGRESS}", _show)
    node.workerinput[PROGRESS] = True


def _show(node: Any, kind: str, text: str, tests: Sequence[str]) -> None:
    perf = plugin_state.get_state(node.config)
    perf.tests = perf.tests or tests
    perf.display.show_worker_event(node.gateway.id, kind, text)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Process what a worker that has ended could not record or show itself. Called in the controller."""
    from pytest_dtfperf.records.record import Record

    output = getattr(node, "workeroutput", {})
    if PROBLEM_KEY in output:
        raise pytest.UsageError(output[PROBLEM_KEY])
    if output.get(USED):
        perf = plugin_state.get_state(node.config)
        if dry_run := plugin_state.get_dry_run(node.config):
            dry_run.take_over(output.get(NOTED, ()))
        if why := output.get(UNWRITTEN):
            perf.session.folder.take_over([Record.from_json(json.loads(line)) for line in why["lines"]], why["why"])


# Fixtures


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> "ClusterInfo":
    """Return the cluster, read-only.

    It has `.name`, `.backend`, `.devices`, `.device`, `.settings(model)`, and of its hosts `.hosts`, `.fingerprint` and
    `.system`. Nothing is allocated until a test trains or reads the hosts; it is released when the session ends.
    """
    return plugin_state.get_state(pytestconfig).cluster


@pytest.fixture
def train(request: pytest.FixtureRequest, cluster: "ClusterInfo") -> "Train":
    """Return a function that measures: `train(model="inception3", gpus=2, num_ps=1, variable_update="parameter_server")`.

    `train` takes every field of `Spec`; the command line, the cluster and the model decide the rest, in this order.
    With `command=["python", "train.py", ...]` it runs an external command instead: docs/command.md.
    It returns the recorded measurement. A spec that another test of this session has measured is not trained again.
    """
    from pytest_dtfperf.plugin.fixture_objects import Train

    config = request.config
    return Train(
        plugin_state.get_state(config), request.node, plugin_state.get_marker(request.node), plugin_state.get_dry_run(config)
    )


@pytest.fixture
def baseline(request: pytest.FixtureRequest, cluster: "ClusterInfo") -> "Baseline":
    """Return the checks: `.check(...)`, `.check_published(...)`, `.check_efficiency(...)`, `.check_overhead(...)`, ...

    A verdict that fails the test is its failure message.
    """
    from pytest_dtfperf.plugin.fixture_objects import Baseline, ComparisonBaseline, DryRunBaseline

    perf = plugin_state.get_state(request.config)
    is_dry = plugin_state.get_dry_run(request.config) is not None
    kind = DryRunBaseline if is_dry else ComparisonBaseline if perf.comparer else Baseline
    return kind(perf, request.node, plugin_state.get_marker(request.node))
