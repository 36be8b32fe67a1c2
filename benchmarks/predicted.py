"""How near predictions are to rates that they were not fitted to: `python -m benchmarks.predicted`

Two checks, with tables in Markdown. Published rates: of each series the small sizes are fitted, and the others predicted. Own
runs: every cell of the network study (`capacity.py`) is predicted from the worker's step alone and the rate of its shaped link.
Nothing is measured, and the same rows give the same tables. docs/predict.md has both.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from benchmarks.capacity import KEPT, Result
from benchmarks.shaped import load_results
from pytest_dtfperf.baselines.references import Reference, references
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.predict.event_model import NetworkRates, StepModel
from pytest_dtfperf.predict.inputs import find_hosts, group_by_series, make_measured
from pytest_dtfperf.predict.prediction import LinkRange, PredictedRate, Predictor
from pytest_dtfperf.spec import Spec
from tests.machines.machine import bit_per_s

# Rates of links to which all rows of these systems fit best, 128 devices among them: no held-out check of the largest sizes.
FITTED_LINKS = {"piz-daint": 2.5e9, "cscs-ec2-p2.xlarge": 0.28e9}
PAYLOAD = 0.954  # of a shaped link's rate: the rest is headers, which a probe does not count
OUTSIDE = "!"  # marks a rate outside of its interval


FITTED_OF_MANY, FITTED_OF_FEW = 8, 2  # devices of the largest rate that is fitted, of series that go beyond 8, and of others


@dataclass(frozen=True, kw_only=True)
class HeldOutRate:
    """A published rate that was not fitted, with its prediction."""

    reference: Reference
    largest_fitted: int  # devices
    prediction: PredictedRate

    @property
    def error(self) -> float:
        """Return predicted / published - 1."""
        return self.prediction.images_per_sec / self.reference.images_per_sec - 1

    @property
    def is_covered(self) -> bool:
        """Return whether the interval has the published rate."""
        return self.prediction.low <= self.reference.images_per_sec <= self.prediction.high


def predict_held_out(link_bytes_per_s: Mapping[str, float] | None = None) -> list[HeldOutRate]:
    """Fit the small sizes of each published series, and predict the others.

    `link_bytes_per_s`: by system, measured rates of links: only these systems are predicted. None: all systems, with links of
    data sheets, or unknown ones.
    """
    found: list[HeldOutRate] = []
    for rows in group_by_series(references()):
        if link_bytes_per_s is not None and rows[0].system not in link_bytes_per_s:
            continue
        most = FITTED_OF_MANY if rows[-1].gpus > FITTED_OF_MANY else FITTED_OF_FEW
        fitted = [row for row in rows if row.gpus <= most]
        if not fitted or fitted == rows:
            continue
        measured = [make_measured(row) for row in fitted]
        hosts = find_hosts(rows[0].system)
        if link_bytes_per_s is not None:
            hosts = replace(hosts, link=LinkRange.from_probe(link_bytes_per_s[rows[0].system]))
        predictor = Predictor(measured, hosts)
        for row in rows[len(fitted) :]:
            rate = make_measured(row)
            prediction = predictor.predict(rate.spec, rate.layout)
            found.append(HeldOutRate(reference=row, largest_fitted=fitted[-1].gpus, prediction=prediction))
    return found


@dataclass(frozen=True)
class CellError:
    """A cell of the network study, with the error of its predicted step."""

    result: Result
    error: float  # predicted / measured - 1, of rates


def format_published(found: Sequence[HeldOutRate]) -> Iterator[str]:
    """Yield a row for each series: the error of each size that was held out."""
    yield "| System | Model, batch, program | Fitted to | Devices: error of the predicted rate |"
    yield "|---|---|---:|---|"
    for (system, model, largest), rows in groupby(found, key=_name_series):
        errors = ", ".join(f"{row.reference.gpus}: {_format_error(row)}" for row in rows)
        yield f"| {system} | {model} | {largest} | {errors} |"


def _name_series(row: HeldOutRate) -> tuple[str, str, int]:
    reference = row.reference
    program = "" if reference.implementation == "tf_cnn_benchmarks" else f", {reference.implementation}"
    mode = f", {reference.variable_update}" if reference.system == "8xp100" else ""
    table = " (1)" if "Other" in reference.table else ""
    return reference.system, f"{reference.model}, {reference.batch_size}{program}{mode}{table}", row.largest_fitted


def _format_error(row: HeldOutRate) -> str:
    return f"{100 * row.error:+.1f} %{'' if row.is_covered else ' ' + OUTSIDE}"


def summarise(found: Iterable[HeldOutRate]) -> str:
    """Return the mean error, the largest one, and how many rates are within their intervals."""
    rows = list(found)
    errors = [abs(row.error) for row in rows]
    covered = sum(row.is_covered for row in rows)
    return (
        f"{len(rows)} rates: mean error {100 * statistics.mean(errors):.1f} %, largest {100 * max(errors):.1f} %, "
        f"{covered} within their intervals ({100 * covered / len(rows):.0f} %)"
    )


def predict_cells(results: Iterable[Result]) -> list[CellError]:
    """Predict the trained cells of which the worker's step alone is known."""
    trained = [result for result in results if result.step_s]
    alone: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for result in trained:
        if result.bound_by == "worker":
            alone[result.processor, result.cell.model, result.cell.batch_size].append(result.limit_s)
    found = []
    models: dict[Spec, StepModel] = {}  # of all links
    for result in trained:
        cell = result.cell
        if (known := alone.get((result.processor, cell.model, cell.batch_size))) and result.step_s:
            spec = cell.spec
            if spec not in models:
                servers = {f"ps:{number}": f"server {number}" for number in range(cell.num_ps)}
                models[spec] = StepModel(spec, Layout({**servers, "worker:0": "worker 0", "worker:1": "worker 1"}))
            link = NetworkRates(link_bytes_per_s=PAYLOAD * bit_per_s(cell.rate) / 8)
            step_s = models[spec].step_s(statistics.median(known), link)
            found.append(CellError(result, result.step_s / step_s - 1))
    return found


def format_cells(found: Sequence[CellError]) -> Iterator[str]:
    """Yield a row for each rate of links and bounding resource."""
    yield "| Link | The limit is that of | Cells | Median error of the rate | Half of them between |"
    yield "|---:|---|---:|---:|---|"
    by_kind: dict[tuple[float, str, str], list[float]] = defaultdict(list)
    for each in found:
        cell = each.result.cell
        by_kind[bit_per_s(cell.rate), cell.rate, each.result.bound_by].append(each.error)
    for (_, rate, bound_by), errors in sorted(by_kind.items()):
        low, middle, high = statistics.quantiles(errors, n=4) if len(errors) > 1 else errors * 3
        between = f"{100 * low:+.0f} % and {100 * high:+.0f} %"
        yield f"| {rate} | {bound_by} | {len(errors)} | {100 * middle:+.1f} % | {between} |"


def load_cells() -> list[CellError]:
    """Predict the stored cells of the network study."""
    return predict_cells(load_results(KEPT, Result.from_json))


def make_tables(cells: Sequence[CellError]) -> list[str]:
    """Return the lines of both checks, of published rates and of cells of the network study."""
    held_out = predict_held_out()
    return [
        *format_published(held_out),
        "",
        f"All: {summarise(held_out)}.",
        f"Of one host: {summarise(row for row in held_out if row.reference.nodes == 1)}.",
        "",
        *format_published(predict_held_out(FITTED_LINKS)),
        "",
        *format_cells(cells),
    ]


def main() -> int:
    print("\n".join(make_tables(load_cells())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
