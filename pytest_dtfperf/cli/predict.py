"""`dtfperf predict`: rates of a training on more devices than were measured, each with an interval."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.options import (
    DONE,
    USAGE,
    Commands,
    Shape,
    add_cluster,
    add_command,
    add_json,
    load_cluster,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, write_file
from pytest_dtfperf.cli.run import complete_word, parse_specs
from pytest_dtfperf.errors import SpecError, UsageError
from pytest_dtfperf.formats import RATE_FORM, parse_link_rate, percent, rate, with_prefix

if TYPE_CHECKING:
    from pytest_dtfperf.predict.prediction import Gain, Hosts, LinkRange, MeasuredRate, PredictedRate, Predictor
    from pytest_dtfperf.records.record import Record
    from pytest_dtfperf.spec import Spec

TEXT = """\
Predict the rate of a training on more devices than were measured, with an interval of 90 % and the limiting resource, and the
gain of other placements, precisions and modes. No host is contacted. A training is a model and FIELD=VALUE, as for dtfperf
run.

    dtfperf predict inception3 --device-rate=138 --devices-per-host=1 --link=10gbit
    dtfperf predict resnet50 variable_update=collective_all_reduce --gpus=8,64,512 --device-rate=380 --devices-per-host=8
    dtfperf predict inception3 --gpus=1..1024 --session=perf_results/20260131T021503Z-9f3c1a --cluster=daint
    dtfperf predict inception3 --published=piz-daint --gpus=1..256 --figure=daint.svg --json

Predictions start from measured rates: --device-rate, --measured, --session or --published. Without --link, intervals are wide
if links limit the rate. docs/predict.md describes the model, and its errors on published rates.
"""
ENDS = {DONE: "predicted", USAGE: "wrong arguments, or no measured rate"}
SHAPE: Shape = {
    "training": "the label of the training, for one device",
    "link": {
        "low": "bytes/s of a host's link in each direction: the least that is assumed",
        "high": "the most",
        "source": "where these are from",
        "fitted": "the median, given the measured rates",
    },
    "jitter": "standard deviation of the devices' times of computing, as a fraction of these, given the measured rates",
    "largest_measured": "devices of the largest rate that it starts from",
    "rates": [
        {
            "gpus": "devices",
            "hosts": "with workers or parameter servers",
            "num_ps": "parameter servers",
            "images_per_sec": "the median of what is likely",
            "low": "lower end of the interval of 90 %",
            "high": "upper end",
            "efficiency": "rate(n) / (n x rate(1)); null: no rate of one device is known",
            "compute_s": "seconds of a step in which a device computes",
            "jitter_s": "seconds until the slowest device has computed",
            "link_s": "seconds that links between hosts add",
            "limited_by": "the resource that adds most to a step",
            "is_open": "true: the interval is wide because the rate of links is not known",
            "measured": "the highest rate that was measured with as many devices; null: none was",
        }
    ],
    "changes": [
        {
            "change": "FIELD=VALUE of another training with the same arithmetic, on the largest number of devices",
            "num_ps": "its best number of parameter servers",
            "ratio": "its rate as a multiple of the unchanged one",
            "low": "the least that is likely",
            "high": "the most",
        }
    ],
}
DEFAULT_SIZES = "1..1024"
MOST_DEVICES = 65_536
BEST = "best"
_POINT = re.compile(r"([1-9]\d*)(?:/(\d+))?:(\d+\.?\d*|\.\d+)", re.ASCII)


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "predict", help="predict rates of more devices than were measured", text=TEXT, ends=ENDS)
    set_completer(
        parser.add_argument("words", metavar="MODEL [FIELD=VALUE ...]", nargs="+", help="the training"), complete_word
    )
    text = f"numbers of devices, as 8,64 or 1..1024 for the powers of two between; {DEFAULT_SIZES} by default"
    parser.add_argument("--gpus", metavar="N,N..N", type=_parse_sizes, default=DEFAULT_SIZES, help=text)
    text = "parameter servers: best (the default) is the predicted best of each size, N is the same for all"
    parser.add_argument("--num-ps", metavar="best|N", type=_parse_servers, default=BEST, help=text)
    parser.add_argument("--device-rate", metavar="RATE", type=_parse_rate, help="measured images/sec of one device")
    text = "a measured rate as DEVICES:RATE, or DEVICES/SERVERS:RATE; may be given several times"
    parser.add_argument("--measured", metavar="POINT", type=_parse_point, action="append", default=[], help=text)
    text = "a session's folder, or a folder of such: its measurements of this training, and its probes of links"
    parser.add_argument("--session", metavar="SOURCE", help=text)
    text = "a published system, as piz-daint: its rates of this model and batch size, and its data sheet"
    parser.add_argument("--published", metavar="SYSTEM", help=text)
    parser.add_argument(
        "--link", metavar="RATE", type=_parse_link, help="rate of a host's link by its data sheet, as 10gbit or 1.25GB/s"
    )
    text = "measured rate of a host's link (dtfperf doctor), as 9.4gbit; the interval is narrower with it"
    parser.add_argument("--link-measured", metavar="RATE", type=_parse_link, help=text)
    parser.add_argument(
        "--devices-per-host", metavar="N", type=_parse_count, help="devices of each host; by default those of the cluster, or 1"
    )
    add_cluster(parser, text="a cluster of clusters.toml: its devices per host and worker, and where its servers are")
    parser.add_argument("--figure", metavar="FILE", type=Path, help="draw rates and efficiencies, as .svg or .png")
    add_json(parser, SHAPE)
    parser.set_defaults(run=run_predict)


def run_predict(args: argparse.Namespace) -> int:
    from pytest_dtfperf.predict.prediction import Predictor

    if args.link and args.link_measured:
        raise UsageError("--link and --link-measured are two rates of one link: give one of them")
    if args.figure and args.figure.suffix not in (".svg", ".png"):
        raise UsageError(f"--figure is a file .svg or .png, not {args.figure}")
    base = _make_spec(args)
    records = _load_records(args.session) if args.session else []
    hosts = _make_hosts(args, records)
    measured = _list_measured(args, base, hosts, records)
    try:
        predictor = Predictor(measured, hosts)
        found = [predictor.predict(_choose_servers(predictor, base.replace(gpus=gpus), args.num_ps)) for gpus in args.gpus]
        gains = predictor.list_gains(found[-1].spec) if found[-1].spec.gpus > 1 else []
    except SpecError as error:
        raise UsageError(f"{base.model} cannot be predicted: {error}") from error
    if args.figure:
        _draw(args.figure, found, measured)
    if args.json:
        print_json(_make_json(base, predictor, hosts, found, gains, measured))
    else:
        _print(predictor, hosts, found, gains, measured)
    return DONE


def _make_spec(args: argparse.Namespace) -> "Spec":
    """Return the training on one device, of published systems as of 2017: `greedy`, if not given. Raises `UsageError`."""
    from pytest_dtfperf.session.own_models import import_model, with_name
    from pytest_dtfperf.session.resolve import resolve
    from pytest_dtfperf.session.settings import Settings

    first, *others = parse_specs(args.words)
    if others:
        raise UsageError(f"one training at a time: {first.model} and {others[0].model} are two")
    for name in ("gpus", "num_ps"):
        if name in first.fields:
            raise UsageError(f"{name}={first.fields[name]}: give it as --{name.replace('_', '-')}={first.fields[name]}")
    model = import_model(first.model) if ":" in first.model else first.model
    try:
        return resolve(
            with_name({"model": model, **first.fields, "gpus": 1}), Settings(), {}, "gpu", between_hosts=not args.published
        )
    except SpecError as error:
        raise UsageError(f"{first}: {str(error).removeprefix('train(): ')}") from error


def _load_records(source: str) -> "list[Record]":
    from pytest_dtfperf.report.sources import load_sessions

    return [record for stored in load_sessions(source) for record in stored.records]


def _make_hosts(args: argparse.Namespace, records: "Sequence[Record]") -> "Hosts":
    from pytest_dtfperf.clusters.capacity import predict_devices_per_host
    from pytest_dtfperf.predict.inputs import find_hosts
    from pytest_dtfperf.predict.prediction import Hosts

    cluster = load_cluster(args) if args.cluster else None
    published = find_hosts(args.published) if args.published and not args.devices_per_host else None
    devices = args.devices_per_host or (predict_devices_per_host(cluster) if cluster else None)
    return Hosts(
        devices_per_host=devices or (published.devices_per_host if published else 1),
        link=_find_link(args, records),
        config=cluster,
    )


def _find_link(args: argparse.Namespace, records: "Sequence[Record]") -> "LinkRange":
    from pytest_dtfperf.predict.inputs import find_hosts, find_probed_link
    from pytest_dtfperf.predict.prediction import LinkRange

    if args.link_measured:
        return LinkRange.from_probe(args.link_measured, "--link-measured")
    if args.link:
        return LinkRange.from_data_sheet(args.link, "--link, of a data sheet")
    if probed := find_probed_link(records):
        return probed
    return find_hosts(args.published).link if args.published else LinkRange.make_unknown()


def _list_measured(args: argparse.Namespace, base: "Spec", hosts: "Hosts", records: "Sequence[Record]") -> "list[MeasuredRate]":
    """Return all measured rates. Raises `UsageError` if there is none."""
    from pytest_dtfperf.predict.inputs import load_published, select_measured
    from pytest_dtfperf.predict.prediction import MeasuredRate

    points = [*([(1, None, args.device_rate)] if args.device_rate else []), *args.measured]
    found = []
    for gpus, servers, images_per_sec in points:
        try:
            spec = base.replace(gpus=gpus, num_ps=base.num_ps if servers is None else servers)
            found.append(MeasuredRate(spec=spec, layout=hosts.place(spec), images_per_sec=images_per_sec))
        except SpecError as error:
            raise UsageError(f"--measured={gpus}/{servers}: {error}") from error
    found += select_measured(records, base)
    if args.published:
        found += load_published(args.published, base)
    if not found:
        where = f"{args.session} has no valid measurement of {base.label}; " if args.session else ""
        raise UsageError(f"{where}give a rate to start from: --device-rate, --measured, --session or --published")
    return found


def _choose_servers(predictor: "Predictor", spec: "Spec", num_ps: int | str) -> "Spec":
    if spec.gpus == 1 or not spec.mode.parameter_servers:
        return spec
    return predictor.choose_num_ps(spec) if num_ps == BEST else spec.replace(num_ps=num_ps)


def _find_measured(measured: "Sequence[MeasuredRate]", found: "PredictedRate") -> float | None:
    """Return the highest rate that was measured with as many devices."""
    return max((each.images_per_sec for each in measured if each.spec.gpus == found.spec.gpus), default=None)


def _make_json(
    base: "Spec",
    predictor: "Predictor",
    hosts: "Hosts",
    found: "Sequence[PredictedRate]",
    gains: "Sequence[Gain]",
    measured: "Sequence[MeasuredRate]",
) -> dict[str, Any]:
    names = ("hosts", "images_per_sec", "low", "high", "efficiency", "compute_s", "jitter_s", "link_s", "is_open")
    link = hosts.link
    return {
        "training": base.label,
        "link": {"low": link.low, "high": link.high, "source": link.source, "fitted": predictor.link_bytes_per_s},
        "jitter": predictor.jitter,
        "largest_measured": predictor.largest,
        "rates": [
            {
                **{name: getattr(each, name) for name in names},
                "gpus": each.spec.gpus,
                "num_ps": each.spec.num_ps,
                "limited_by": each.binding,
                "measured": _find_measured(measured, each),
            }
            for each in found
        ],
        "changes": [{name: getattr(each, name) for name in ("change", "num_ps", "ratio", "low", "high")} for each in gains],
    }


def _print(
    predictor: "Predictor",
    hosts: "Hosts",
    found: "Sequence[PredictedRate]",
    gains: "Sequence[Gain]",
    measured: "Sequence[MeasuredRate]",
) -> None:
    headings = ("devices", "hosts", "servers", "images/sec", "90 % interval", "efficiency", "measured", "limited by")
    print_table(headings, [_make_row(each, _find_measured(measured, each)) for each in found])
    link = hosts.link
    likely = f"likely {_format_link(predictor.link_bytes_per_s)}"
    print(f"\nlink of a host: {_format_link(link.low)} to {_format_link(link.high)}, {link.source}; {likely}")
    source = "" if len(measured) > 1 else "; assumed, because one rate alone does not show it"
    print(f"jitter of the devices: {percent(predictor.jitter)} of the time in which they compute{source}")
    if any(each.is_open for each in found):
        print("~ wide because the rate of links is not known: give --link-measured, or --link, or rates of larger sizes")
    if gains:
        largest = found[-1]
        print(
            f"\nother trainings on {largest.spec.gpus} devices, as a multiple of {rate(largest.images_per_sec)} images/sec:\n"
        )
        print_table(("change", "servers", "rate", "90 % interval"), map(_make_gain_row, gains))


def _make_row(each: "PredictedRate", measured: float | None) -> list[str]:
    return [
        str(each.spec.gpus),
        str(each.hosts),
        str(each.spec.num_ps) if each.spec.num_ps else "-",
        rate(each.images_per_sec),
        f"{rate(each.low)} to {rate(each.high)}{' ~' if each.is_open else ''}",
        percent(each.efficiency) if each.efficiency is not None else "-",
        rate(measured) if measured else "-",
        each.binding,
    ]


def _make_gain_row(gain: "Gain") -> list[str]:
    return [gain.change, str(gain.num_ps) if gain.num_ps else "-", f"{gain.ratio:.2f}", f"{gain.low:.2f} to {gain.high:.2f}"]


def _format_link(bytes_per_s: float) -> str:
    return with_prefix(8 * bytes_per_s, "bit/s")


def _draw(path: Path, found: "Sequence[PredictedRate]", measured: "Sequence[MeasuredRate]") -> None:
    try:
        from pytest_dtfperf.report.charts import convert_to_png, convert_to_svg, draw_scaling
        from pytest_dtfperf.report.series import ScalingPoint, ScalingSeries
    except ImportError as exc:
        from pytest_dtfperf.report.session_exports import INSTALL

        raise UsageError(f"pictures are drawn by matplotlib: {exc}. {INSTALL}") from exc
    points = [ScalingPoint(p.spec.gpus, p.images_per_sec, p.efficiency, lowest=p.low, highest=p.high) for p in found]
    of_one_device = next((each.images_per_sec for each in measured if each.spec.gpus == 1), None)
    known = [
        ScalingPoint(gpus, each, each / gpus / of_one_device if of_one_device else None, lowest=each, highest=each)
        for gpus, each in sorted((point.spec.gpus, point.images_per_sec) for point in measured)
    ]
    spec = found[-1].spec
    figure = draw_scaling(
        f"{spec.model}, {spec.batch_size} images per device: predicted",
        [ScalingSeries(f"predicted, {spec.variable_update}", points), ScalingSeries("measured", known)],
        heading="bars: predicted intervals of 90 %",
    )
    write_file(path, (convert_to_svg if path.suffix == ".svg" else convert_to_png)(figure))


def _parse_sizes(text: str) -> list[int]:
    """Parse `1,2,8` or `1..1024`: both ends, and the powers of two between."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*)(?:\.\.([1-9]\d*))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MOST_DEVICES:
            raise argparse.ArgumentTypeError(f"takes numbers of devices up to {MOST_DEVICES}, as 8,64 or 1..1024, not {text!r}")
        found |= {first, last} | {2**power for power in range(17) if first <= 2**power <= last}
    return sorted(found)


def _parse_servers(text: str) -> int | str:
    return BEST if text == BEST else _parse_count(text)


def _parse_count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"takes a whole number of at least 1, not {text!r}")
    return int(text)


def _parse_rate(text: str) -> float:
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", text, re.ASCII) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"takes images per second above 0, not {text!r}")
    return float(text)


def _parse_point(text: str) -> tuple[int, int | None, float]:
    match = _POINT.fullmatch(text)
    if not match or float(match[3]) <= 0:
        raise argparse.ArgumentTypeError(f"takes DEVICES:RATE or DEVICES/SERVERS:RATE, as 8/2:1018.2, not {text!r}")
    return int(match[1]), int(match[2]) if match[2] else None, float(match[3])


def _parse_link(text: str) -> float:
    """Return bytes/s."""
    try:
        return parse_link_rate(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes {RATE_FORM}, not {text!r}") from None
