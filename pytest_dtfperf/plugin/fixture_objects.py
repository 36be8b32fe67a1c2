"""The objects of the fixtures `train` and `baseline`."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.errors import MissingModule, TimeBudgetSpent, UsageError, show_value
from pytest_dtfperf.plugin import installed_first
from pytest_dtfperf.plugin.adapter import SessionAdapter
from pytest_dtfperf.plugin.dry_run import DryRun
from pytest_dtfperf.plugin.options import NUM_PS_WORDS
from pytest_dtfperf.plugin.outcome import ACCEPTED, COMPARISON, DRY_RUN, TRAINED, VERDICT, WHY
from pytest_dtfperf.plugin.parametrise import Marker
from pytest_dtfperf.plugin.stack_comparison import StackComparer, skip_check
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import measurement_text
from pytest_dtfperf.report.explanations import list_explanation
from pytest_dtfperf.report.tables import DEFAULT_COLUMNS
from pytest_dtfperf.report.terminal import format_failure
from pytest_dtfperf.session.experiment import Experiment
from pytest_dtfperf.session.session import will_accept
from pytest_dtfperf.spec import Spec, labels


def _get_experiment(perf: SessionAdapter, item: pytest.Item, marker: Marker) -> Experiment:
    """Return the experiment of a test. Its measurements become properties of the test, too, for JUnit's XML."""
    return perf.session.experiment(
        item.nodeid,
        margin=marker.margin,
        efficiency=marker.efficiency,
        checks=marker.checks,
        on_record=partial(note, item),
        attempt=getattr(item, "execution_count", 1),  # the counter of pytest-rerunfailures
    )


class Train:
    """The object of the fixture `train`."""

    def __init__(self, perf: SessionAdapter, item: pytest.Item, marker: Marker, dry_run: DryRun | None) -> None:
        self._perf = perf
        self._item = item
        self._dry_run = dry_run
        self._given: Collection[str] = ()  # the fields that the test sets
        self._experiment = _get_experiment(perf, item, marker)

    def __call__(self, model: Any = None, *, repeats: int | None = None, **wanted: Any) -> Record:
        """Train and measure.

        Args:
            model: a name, or a model of your own (docs/own-models.md); may be left out with a `command`.
            repeats: number of runs; by default as many as the verdict needs, up to the command line's or cluster's limit.
            wanted: further fields of `Spec`.

        Raises:
            RunFailed, InvalidMeasurement, InfrastructureError: of a run.
        """
        (record,) = self.in_turn({"model": model, **wanted}, repeats=repeats)
        return record

    def in_turn(self, *each: Mapping[str, Any], repeats: int | None = None, **common: Any) -> list[Record]:
        """Train several specs for a comparison, a run of each in turn, so that a machine's drift affects them equally.

        Specs that this session has measured are not trained again.

        Args:
            each: fields of `Spec` in which they differ.
            common: fields that they have in common.
        """
        self._item.stash[TRAINED] = True
        self._given = {name for own in each for name in (*common, *own)}
        wanted = [self._resolve({**common, **own}) for own in each]
        if self._dry_run:
            return [self._note_in(self._dry_run, spec, repeats, word) for spec, word in wanted]
        try:
            with installed_first():
                found = self._measure(wanted, repeats)
        except (MissingModule, TimeBudgetSpent) as error:
            pytest.skip(str(error))
        for measured in found:
            self._item.config.hook.pytest_dtfperf_measured(item=self._item, measured=measured)
        return found

    def _measure(self, wanted: Sequence[tuple[Spec, str]], repeats: int | None) -> list[Record]:
        if self._perf.comparer:
            if sought := next((word for _, word in wanted if word), ""):
                raise UsageError(f"train(): --ab compares trainings with a number of parameter servers, not num_ps={sought!r}")
            found = self._perf.comparer.measure([spec for spec, _ in wanted], self._item.nodeid)
            for record in found:
                note(self._item, record)
            return found
        if [word for _, word in wanted] == ["sweep"]:
            return [self._experiment.sweep(wanted[0][0], repeats)]
        specs = [self._with_num_ps(spec, word) for spec, word in wanted]
        return self._experiment.measure(self._perf.session.fit_to_time(specs, self._item.nodeid, self._given), repeats)

    def _resolve(self, wanted: dict[str, Any]) -> tuple[Spec, str]:
        """Return the spec, and "best" or "sweep" if its number of parameter servers is still unknown."""
        if wanted.get("command"):
            wanted = {"command_dir": str(self._item.path.parent), **wanted}
        word = found if (found := wanted.get("num_ps")) in NUM_PS_WORDS else ""
        spec = self._perf.session.spec(**{**wanted, **({"num_ps": None} if word else {})})
        return spec, word if spec.mode.parameter_servers else ""

    def _note_in(self, dry_run: DryRun, spec: Spec, repeats: int | None, word: str) -> Record:
        return dry_run.note(self._item, spec, self._perf.session.plan(spec, repeats), remark=_REMARKS.get(word, ""))

    def _with_num_ps(self, spec: Spec, word: str) -> Spec:
        if word == "sweep":
            return self._experiment.with_swept_num_ps(spec)
        return self._experiment.with_best_num_ps(spec) if word == "best" else spec


_REMARKS = {
    "best": "num_ps=best is looked up once the hosts have said what they are",
    "sweep": "num_ps=sweep tries several numbers of parameter servers by short runs, and measures the two fastest",
}


_NOTED = pytest.StashKey[dict[Spec, Record]]()  # the current measurements of a test


def note(item: pytest.Item, record: Record) -> None:
    """Note the numbers of a measurement as properties of the test, replacing those before further runs."""
    noted = item.stash.setdefault(_NOTED, {})
    before = _make_properties(noted)
    noted[record.spec] = record
    others = [(name, value) for name, value in item.user_properties if name not in before]
    item.user_properties[:] = [*others, *_make_properties(noted).items()]


def is_noted(item: pytest.Item, record: Record) -> bool:
    """Return whether the test has properties of that training."""
    return record.spec in item.stash.get(_NOTED, {})


def _make_properties(noted: Mapping[Spec, Record]) -> dict[str, Any]:
    """Return the properties; names of trainings with the same label contain the fields that differ, as in the table."""
    label = labels(noted)
    found = ((f"dtfperf {label[spec]}: {name}", n) for spec, each in noted.items() for name, n in _list_numbers(each).items())
    return {name: number for name, number in found if number is not None}


def _list_numbers(record: Record) -> dict[str, Any]:
    return {
        "images_per_sec": record.images_per_sec,
        "runs": len(record.measurement.rates),
        "limit": record.limit and record.limit.images_per_sec,
        "share_of_limit": record.share_of_limit,
        "bound_by": measurement_text.find_binding_resource(record),
        "simulated": record.measurement.fingerprint.hardware.simulated or None,
    }


class Baseline:
    """The object of the fixture `baseline`. Every verdict is recorded before it fails the test."""

    def __init__(self, perf: SessionAdapter, item: pytest.Item, marker: Marker) -> None:
        self._perf = perf
        self._item = item
        self._experiment = _get_experiment(perf, item, marker)

    def check(self, measurement: Record, *, margin: float | None = None) -> Judgement:
        """Compare with the stored baseline. `margin` is the largest loss that passes, as a part of the baseline."""
        _check_arguments("check", measurement=measurement, margin=margin)
        return self._conclude(partial(self._experiment.check, measurement, margin=margin), measurement)

    def check_published(self, measurement: Record, *, system: str, margin: float | None = None, **wanted: Any) -> Judgement:
        """Compare with a published rate of the same training on the same hardware: `system="dgx1"`.

        `wanted`: further fields of the published row, where several are of the same model, batch, precision, data and size.
        Raises `BaselineFileError` if there is not exactly one.
        """
        _check_arguments("check_published", measurement=measurement, margin=margin)
        check = partial(self._experiment.check_published, measurement, system=system, margin=margin, **wanted)
        return self._conclude(check, measurement)

    def check_efficiency(self, measurement: Record, *, anchor: Record, at_least: float | None = None) -> Judgement:
        """Compare rate(n) / (n x rate(1)) with a threshold. `anchor` is the 1-device measurement of this session."""
        _check_arguments("check_efficiency", measurement=measurement, anchor=anchor, at_least=at_least)
        check = partial(self._experiment.check_efficiency, measurement, anchor=anchor, at_least=at_least)
        return self._conclude(check, measurement, anchor)

    def check_overhead(self, *, synthetic: Record, real: Record, at_most: float) -> Judgement:
        """Compare (synthetic - real) / synthetic with a threshold."""
        _check_arguments("check_overhead", synthetic=synthetic, real=real, at_most=at_most)
        check = partial(self._experiment.check_overhead, synthetic=synthetic, real=real, at_most=at_most)
        return self._conclude(check, real, synthetic)

    def check_accuracy(self, measurement: Record, *, at_least: float) -> Judgement:
        """Compare the accuracy on the test set, 0 to 1, with a threshold. The spec needs evaluate=True."""
        _check_arguments("check_accuracy", measurement=measurement, at_least=at_least)
        return self._conclude(partial(self._experiment.check_accuracy, measurement, at_least=at_least), measurement)

    def check_learning(self, measurement: Record, *, anchor: Record, at_most: float) -> Judgement:
        """Compare the steps to the specs' stop_at_top_1_accuracy, relative to the anchor's, with a threshold."""
        _check_arguments("check_learning", measurement=measurement, anchor=anchor, at_most=at_most)
        check = partial(self._experiment.check_learning, measurement, anchor=anchor, at_most=at_most)
        return self._conclude(check, measurement, anchor)

    def _conclude(self, check: Callable[[], Judgement], *judged: Record) -> Judgement:
        """Carry out a check, and fail the test if its verdict is a failure.

        Args:
            judged: the judged measurement, then the one that it is compared with.
        """
        with installed_first():
            judgement = check()
        perf, folder = self._perf, self._perf.session.folder
        records = [folder.measurement(each.id) or each for each in judged]  # with the runs that the check has added
        for each in records:
            if is_noted(self._item, each):  # a measurement of another test is noted there
                note(self._item, each)
        record = records[0]
        self._item.user_properties.append((VERDICT, str(judgement.verdict)))
        if known := list_explanation(record):
            self._item.user_properties.append((WHY, "\n".join(known)))
        self._item.config.hook.pytest_dtfperf_judged(item=self._item, measured=record, judgement=judgement)
        if accepted := will_accept(judgement, record, perf.options):
            self._item.user_properties.append((ACCEPTED, True))
        if judgement.verdict.fails(perf.options.strict_verdicts) and not accepted:
            shown = replace(record, test=self._item.nodeid, verdict=judgement.verdict, reason=judgement.reason)
            logs, session = folder.logs_of(record.test), folder.path
            reporter = self._item.config.pluginmanager.get_plugin("terminalreporter")  # None in a worker of xdist
            width = reporter._tw.fullwidth if reporter else DEFAULT_COLUMNS
            failure = format_failure(shown, logs=logs, options=perf.rerun_options, session=session, width=width)
            pytest.fail(failure, pytrace=False)
        return judgement


class ComparisonBaseline(Baseline):
    """The object of the fixture `baseline` with `--ab`: rates and efficiencies of the stacks are compared with each other."""

    check_published = skip_check("check_published")
    check_overhead = skip_check("check_overhead")
    check_accuracy = skip_check("check_accuracy")
    check_learning = skip_check("check_learning")

    def check(self, measurement: Record, *, margin: float | None = None) -> Judgement:
        """Judge each stack's rate against the reference's. `margin` has no effect: `EQUIVALENT` has a limit of its own."""
        _check_arguments("check", measurement=measurement, margin=margin)
        return self._report(measurement, *self._comparer.judge(measurement))

    def check_efficiency(self, measurement: Record, *, anchor: Record, at_least: float | None = None) -> Judgement:
        """Judge each stack's efficiency against the reference's. `at_least` has no effect."""
        _check_arguments("check_efficiency", measurement=measurement, anchor=anchor, at_least=at_least)
        return self._report(measurement, *self._comparer.judge_efficiency(measurement, anchor))

    @property
    def _comparer(self) -> StackComparer:
        assert self._perf.comparer
        return self._perf.comparer

    def _report(self, measurement: Record, judgement: Judgement, lines: Sequence[str]) -> Judgement:
        """Note the verdict as properties of the test, and fail the test if a stack is slower."""
        self._item.user_properties += [(VERDICT, str(judgement.verdict)), (COMPARISON, judgement.reason)]
        self._item.user_properties.append((WHY, "\n".join(lines)))
        self._item.config.hook.pytest_dtfperf_judged(item=self._item, measured=measurement, judgement=judgement)
        if judgement.verdict.fails(self._perf.options.strict_verdicts):
            pytest.fail("\n".join([judgement.reason, *lines]), pytrace=False)
        return judgement


class DryRunBaseline(Baseline):
    """A placeholder for `Baseline` in a dry run: using it skips the test, before there is anything to judge."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return found if name.startswith("__") else _skip


def _skip(*_: object, **__: object) -> NoReturn:
    pytest.skip(DRY_RUN)


_THRESHOLDS = {"margin", "at_least", "at_most"}


def _check_arguments(method: str, **given: object) -> None:
    """Raise `UsageError` if an argument is not a measurement, or a threshold not a number."""
    for name, value in given.items():
        if name in _THRESHOLDS:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
            ):
                raise UsageError(f"baseline.{method}(): {name} must be a number, not {show_value(value)}")
        elif not isinstance(value, Record):
            each = ", which is several: check each of them" if isinstance(value, list | tuple) else ""
            raise UsageError(f"baseline.{method}(): {name} must be what train() returns, not {show_value(value)}{each}")
