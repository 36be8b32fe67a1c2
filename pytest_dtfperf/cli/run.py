"""`dtfperf run`: measure trainings that the command line names, without a test."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    RECORD_SHAPE,
    Commands,
    add_baselines,
    add_cluster,
    add_command,
    add_json,
    add_results,
    complete_fields,
    count_columns,
    find_baselines_folder,
    find_clusters_file,
    find_results_folder,
    is_colour_wanted,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.errors import (
    DtfPerfError,
    InvalidMeasurement,
    RunFailed,
    SpecError,
    TimeBudgetSpent,
    UsageError,
    describe_unknown_name,
)
from pytest_dtfperf.formats import TIME_BUDGET_FORM, parse_json_value, parse_time_budget
from pytest_dtfperf.history.where import NEVER
from pytest_dtfperf.spec import MODELS, inputs_of
from pytest_dtfperf.spec.tables import is_own_model_name

if TYPE_CHECKING:
    from pytest_dtfperf.clusters.named import ClusterConfig
    from pytest_dtfperf.records.record import Record
    from pytest_dtfperf.session import Session
    from pytest_dtfperf.spec import Spec

TEXT = """\
Measure trainings and compare each with its baseline, as a perf test does. A training is a model, and FIELD=VALUE for each
field without its default. The next model begins another training.

    dtfperf run mnist                                                     # one device of this machine
    dtfperf run inception3 gpus=8 num_ps=2 --cluster=daint
    dtfperf run mnist gpus=2 variable_update=replicated mnist gpus=2 num_ps=sweep
    dtfperf run resnet50 gpus=8 precision=bf16 --update-baselines=new --json
    dtfperf run my_models:small_cnn gpus=2 batch_size=64                  # a model of ./my_models.py: docs/own-models.md
    dtfperf run --models                                                  # list the models

The fields are those of train() in a perf test: batch_size, gpus, num_ps, variable_update, data, data_dir, precision,
optimizer, steps, ... (docs/training.md). num_ps=sweep finds the fastest number of parameter servers. A model of your own is
MODULE:NAME. Measurements are stored in a session folder, as those of pytest.
"""
ENDS = {DONE: "no rate is too slow", FAILED: "a rate is too slow, or a training or the cluster failed"}
BEST, SWEEP = "best", "sweep"  # numbers of parameter servers that are searched for
NOT_HERE = ("model", "command", "command_dir", "rate_pattern", "rate_of", "role_flags")


@dataclass
class WantedSpec:
    """One requested training."""

    model: str  # in a table, or module:name
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """Return `best`, `sweep`, or ""."""
        given = self.fields.get("num_ps")
        return given if given in (BEST, SWEEP) else ""

    def __str__(self) -> str:
        return " ".join([self.model, *(f"{name}={value}" for name, value in self.fields.items())])


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "run", help="measure trainings, and compare each with its baseline", text=TEXT, ends=ENDS)
    argument = parser.add_argument("specs", metavar="MODEL [FIELD=VALUE ...]", nargs="*", help="one or more trainings")
    set_completer(argument, complete_word)
    text = (
        "list the models, including those of other packages; with --json {models: [{name, batch_size, data, package, problem}]}"
    )
    parser.add_argument("--models", action="store_true", help=text)
    add_cluster(parser)
    parser.add_argument(
        "--repeats",
        metavar="N",
        type=int,
        help="maximum number of runs of each training; by default as many as its verdict needs",
    )
    text = "largest allowed loss of rate against the baseline: 0.05 is 5 %%"
    parser.add_argument("--margin", metavar="FRACTION", type=float, help=text)
    text = "time for all trainings, as 6min; limits the runs of each, and leaves out trainings without time; none: no limit"
    parser.add_argument("--time-budget", metavar="TIME", type=parse_time, help=text)
    text = "trace some more steps and show their breakdown; auto, the default: for new baselines and bad verdicts"
    parser.add_argument("--explain", nargs="?", const="always", choices=("always", "auto", "never"), help=text)
    text = "accept the measured rates as baselines; new: only those without a baseline"
    parser.add_argument("--update-baselines", nargs="?", const="all", choices=("all", "new"), help=text)
    add_baselines(parser)
    add_results(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="explain the numbers, and show published rates")
    add_json(parser, RECORD_SHAPE, lines="measurement, as in measurements.jsonl")
    parser.set_defaults(run=run_measure, cluster="local")


def add_time_limit(parser: argparse.ArgumentParser, unit: str, default: str = "there is no limit") -> None:
    """Add --time-limit, after which no further `unit` begins."""
    text = f"no {unit} begins that would end later, as 30min; by default {default}"
    parser.add_argument("--time-limit", metavar="TIME", type=parse_time, help=text)


def get_time_limit_s(args: argparse.Namespace) -> float:
    return args.time_limit if isinstance(args.time_limit, float) else math.inf


def add_steps(parser: argparse.ArgumentParser) -> None:
    text = "most steps that each run measures, if the training sets none"
    parser.add_argument("--steps", metavar="N", type=int, help=text)


def check_steps(args: argparse.Namespace) -> None:
    """Raise `UsageError` if --steps is invalid."""
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps must be 1 or more, not {args.steps}")


def open_session(args: argparse.Namespace, *, history: str | Path | None = NEVER, hosts: str | None = None) -> "Session":
    """Open a session; by default, nothing of it enters the history. Raises `UsageError`.

    Args:
        hosts: only these hosts of the cluster, as "node03,node07"; by default all.
    """
    from pytest_dtfperf.session import Session, Settings

    return Session.open(
        args.cluster,
        clusters_file=find_clusters_file(args),
        results=find_results_folder(args),
        settings=Settings(steps=getattr(args, "steps", None), history=history),
        hosts=hosts,
    )


def print_simulated(config: "ClusterConfig") -> None:
    """Print that nothing was trained, if the hosts of the cluster are simulated."""
    from pytest_dtfperf.clusters.named import BACKENDS
    from pytest_dtfperf.report.measurement_text import format_simulated_note

    if BACKENDS[config.backend].is_simulated:
        print(format_simulated_note([config.name]))


def parse_time(text: str) -> float | str:
    try:
        return parse_time_budget(text) or "none"
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes {TIME_BUDGET_FORM}, not {text!r}") from None


def _load_models(args: argparse.Namespace) -> int:
    rows = [_load_model(name) for name in MODELS]
    if args.json:
        print_json({"models": rows})
        return DONE
    for row in rows:
        if row["problem"]:
            print(f"{row['name']:16} {row['problem']}")
        else:
            package = f"  ({row['package']})" if row["package"] else ""
            print(f"{row['name']:16} batch_size={row['batch_size']:<4} data={','.join(row['data'])}{package}")
    return DONE


def _load_model(name: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "batch_size": None,
        "data": [],
        "package": MODELS.package_of(name) or None,
        "problem": None,
    }
    try:
        return {**row, "batch_size": MODELS[name].batch_size, "data": list(inputs_of(name))}
    except UsageError as error:  # the others can be trained all the same
        return {**row, "problem": str(error)}


def run_measure(args: argparse.Namespace) -> int:
    if args.models:
        return _load_models(args)
    if not args.specs:
        raise UsageError("which training? dtfperf run mnist gpus=2; dtfperf run --models lists the models")
    from pytest_dtfperf.session import Session, Settings

    wanted = list(parse_specs(args.specs))
    if args.repeats is not None and args.repeats < 1:
        raise UsageError(f"--repeats must be 1 or more, not {args.repeats}")
    if args.margin is not None and not 0 < args.margin < 1:
        raise UsageError(f"--margin is a fraction of the baseline, as 0.05 for 5 %, not {args.margin:g}")
    settings = Settings(
        repeats=args.repeats,
        margin=args.margin,
        explain=args.explain or "auto",
        update_baselines=args.update_baselines,
        time_budget=args.time_budget,
    )
    failures: list[str] = []
    opened = Session.open(
        args.cluster,
        clusters_file=find_clusters_file(args),
        baselines=find_baselines_folder(args),
        results=find_results_folder(args),
        settings=settings,
        tests=len(wanted),
    )
    try:
        _measure(opened, wanted, failures)
    except (DtfPerfError, KeyboardInterrupt):  # earlier measurements stay valid
        if opened.has_measured:
            _print_summary(opened, args, failures)
        raise
    _print_summary(opened, args, failures)
    accepted = opened.acceptance
    is_odd = accepted is not None and bool(accepted.loosened_baselines or accepted.is_fruitless)
    return FAILED if failures or is_odd or any(map(_is_red, opened.folder.measurements())) else DONE


def _measure(opened: "Session", wanted: Sequence[WantedSpec], failures: list[str]) -> None:
    """Measure all trainings, unless the cluster fails."""
    with opened as session:
        for each in wanted:
            make_spec(session, each)  # report invalid specs before any measurement
        for each in wanted:
            try:
                measured = _measure_specs(session, each)
                session.check(measured)
            except TimeBudgetSpent:
                continue  # the summary lists it
            except (RunFailed, InvalidMeasurement, SpecError) as failure:
                failures.append(f"{each}: {failure}")


def parse_specs(arguments: Sequence[str]) -> Iterator[WantedSpec]:
    """Return the trainings of the arguments. Raises `UsageError`."""
    found: WantedSpec | None = None
    for word in arguments:
        name, is_field, value = word.partition("=")
        if not is_field:
            if found:
                yield found
            if ":" not in name and name not in MODELS:
                raise UsageError(_raise_unknown(name))
            found = WantedSpec(name)
        elif found is None:
            raise UsageError(f"{word} is of no training: begin with a model, as in dtfperf run mnist {word}")
        elif name in NOT_HERE:
            raise UsageError(f"{word}: a model is named alone, and an external command is for a perf test (docs/command.md)")
        elif name in found.fields:
            raise UsageError(f"{found.model} has {name} twice: {found.fields[name]!r} and {value!r}")
        else:
            found.fields[name] = parse_json_value(value)
    if found:
        yield found


def _raise_unknown(name: str) -> str:
    if is_own_model_name(name):  # labels contain this name, which does not distinguish a module from a class
        module, _, attribute = name.rpartition(".")
        return f"{name}: a model of your own is a module, a colon and its name there: {module}:{attribute}"
    return describe_unknown_name("model", name, MODELS)


def make_spec(session: "Session", wanted: WantedSpec) -> "Spec":
    """Return the spec of a training. Raises `UsageError`."""
    from pytest_dtfperf.session.own_models import import_model

    fields = {name: value for name, value in wanted.fields.items() if name != "num_ps" or not wanted.word}
    try:
        return session.spec(import_model(wanted.model) if ":" in wanted.model else wanted.model, **fields)
    except SpecError as error:
        raise UsageError(f"{wanted}: {str(error).removeprefix('train(): ')}") from error


def _measure_specs(session: "Session", wanted: WantedSpec) -> "Record":
    spec = make_spec(session, wanted)
    if wanted.word == SWEEP and spec.mode.parameter_servers:
        return session.sweep(spec)
    if wanted.word == BEST and spec.mode.parameter_servers:
        spec = session.experiment(spec.label).with_best_num_ps(spec)
    return session.measure(spec)


def _print_summary(session: "Session", args: argparse.Namespace, failures: Sequence[str]) -> None:
    from pytest_dtfperf.report import notes
    from pytest_dtfperf.report.series import find_published_rates
    from pytest_dtfperf.report.terminal import format_failure, format_summary

    records = session.folder.measurements()
    time = session.time_budget.describe() if session.time_budget else []
    if args.json:
        for record in records:
            print_json(record.to_json())
    else:
        text = format_summary(
            records,
            find_published_rates(records) if args.verbose else (),
            width=count_columns(sys.stdout),
            colour=is_colour_wanted(sys.stdout),
            verbose=args.verbose,
            folder=session.folder.path,
            accepted=notes.list_accepted_baselines(session.acceptance, records),
            next_steps=notes.list_next_steps(records, session.folder.session.command, session.config.name),
            remarks=[*notes.list_acceptance_remarks(session.acceptance, records), *session.remarks, *time],
        )
        print(text, end="")
    for record in records:
        if _is_red(record):
            rerun, width = session.folder.session.command, count_columns(sys.stderr)
            failure = format_failure(record, session=session.folder.path, rerun=rerun, width=width)
            print(f"\n{failure}", file=sys.stderr)
    for failure in failures:
        print_remark(failure)


def _is_red(record: "Record") -> bool:
    return bool(record.verdict and record.verdict.fails(strict=False) and not record.accepted)


def complete_word(prefix: str, **_: object) -> list[str]:
    """Return models, and fields of a training."""
    from pytest_dtfperf.session.resolve import SPEC_FIELDS

    return [*MODELS, *complete_fields(prefix, [name for name in SPEC_FIELDS if name not in NOT_HERE])]
