"""Rates of more devices than were measured, each with an interval, from one or more measured rates. Pure.

Two numbers of a system are not known exactly: what a host's link carries, and how much the devices' times of computing differ.
Each has a range. Every pair of values within the ranges is a candidate. A candidate's time of computing follows from the
smallest measurement; its weight from how well it gives the other measurements. The candidates' rates, each with the model's own
error, are the distribution of which the median is the prediction and the middle 90 % the interval. docs/predict.md has the
equations, and the errors that this makes on published rates.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from pytest_dtfperf.clusters.capacity import count_server_hosts, predict_device
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, place
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.predict.event_model import Floats, NetworkRates, StepModel
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec

COVERED = 0.9  # of the distribution, in the interval
# The model's own error as the standard deviation of the logarithm of a rate, and what each doubling beyond the largest
# measurement adds. With these the intervals of published rates cover what docs/predict.md has.
ERROR, ERROR_PER_DOUBLING = 0.03, 0.012
JITTER_SCALE = 0.05  # of the half-normal prior of the jitter; the fits to published rates are between 0.01 and 0.09
JITTERS: Sequence[float] = (0.0, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.13)
LINKS_TRIED = 9
TCP_SHARE = 0.2  # of a data sheet's rate, that training over gRPC reaches at least: 0.22 to 0.97 were seen
WIDE = 1.5  # times the lower end of a range
PROBE_ERROR = 0.1  # of a measured link's rate

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class LinkRange:
    """What a host's link carries in each direction: a range of bytes/s, and where it is from."""

    low: float
    high: float
    source: str

    @classmethod
    def make_unknown(cls) -> "LinkRange":
        """Return the range from 0.4 to 100 Gbit/s."""
        return cls(low=0.05e9, high=12.5e9, source="not known: anything from 0.4 to 100 Gbit/s")

    @classmethod
    def from_data_sheet(cls, per_s: float, source: str = "a data sheet") -> "LinkRange":
        """Return the range of what training reaches of a nominal rate."""
        return cls(low=TCP_SHARE * per_s, high=per_s, source=source)

    @classmethod
    def from_probe(cls, per_s: float, source: str = "measured") -> "LinkRange":
        return cls(low=per_s / (1 + PROBE_ERROR), high=per_s * (1 + PROBE_ERROR), source=source)

    def list_rates(self) -> Floats:
        """Return rates at even distances of their logarithms."""
        parts = (np.arange(LINKS_TRIED) + 0.5) / LINKS_TRIED
        rates: Floats = self.low * (self.high / self.low) ** parts
        return rates


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of a cluster, all alike.

    Attributes:
        config: where its file places tasks; None: a worker has all devices of its host, and servers are beside workers.
    """

    devices_per_host: int
    link: LinkRange = field(default_factory=LinkRange.make_unknown)
    config: ClusterConfig | None = None

    def place(self, spec: Spec) -> Layout:
        """Return where the tasks of a training are, on as many hosts as it needs. Raises `SpecError` if it has no room."""
        on_each = self.devices_per_host
        if spec.in_one_process and spec.gpus > on_each:
            raise SpecError(f"{spec.label} trains in one process, and a host has {on_each} devices")
        config, host = self._own_config, self._view
        apart = count_server_hosts(config, spec.num_ps)
        tasks = place(spec, [host] * (apart + spec.gpus), config)
        names = [f"server host {number + 1}" for number in range(apart)]
        names += [f"host {number + 1}" for number in range(spec.gpus)]
        return Layout(
            {task.name: names[task.host] for task in tasks},
            devices={task.name: task.num_devices for task in tasks if task.num_devices},
        )

    @cached_property
    def _own_config(self) -> ClusterConfig:
        """The cluster's keys, with these devices of each host."""
        known = self.config or ClusterConfig(name="predicted", device="gpu", devices_per_worker=self.devices_per_host)
        return replace(known, devices_per_host=self.devices_per_host, fixed_ports=False)

    @cached_property
    def _view(self) -> HostView:
        """Any host. Each of its devices has a core."""
        devices = range(self.devices_per_host)
        gpus = tuple(map(str, devices)) if predict_device(self._own_config) == "gpu" else ()
        return HostView("host", "", tuple(devices), gpus)


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """A rate that is known."""

    spec: Spec
    layout: Layout
    images_per_sec: float
    noise: float = 0.0  # standard deviation of its logarithm

    @property
    def step_s(self) -> float:
        return self.spec.gpus * self.spec.batch_size / self.images_per_sec


@dataclass(frozen=True, kw_only=True)
class PredictedRate:
    """A rate of one training, with where the time of its step goes."""

    spec: Spec
    hosts: int
    images_per_sec: float
    low: float
    high: float
    efficiency: float | None  # None: no rate of one device is known
    compute_s: float  # of a device, in a step
    jitter_s: float  # until the slowest device has computed
    link_s: float  # that links add to that
    binding: str  # what adds most to the step, as text
    is_open: bool  # the interval is wide because the rate of links is not known

    @property
    def step_s(self) -> float:
        return self.compute_s + self.jitter_s + self.link_s


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a change of the training would bring: its rate as a multiple of that without the change."""

    change: str
    num_ps: int
    ratio: float
    low: float
    high: float


class Predictor:
    """Predicts rates of trainings that compute the same on each device as the measured ones."""

    def __init__(self, measured: Sequence[MeasuredRate], hosts: Hosts) -> None:
        """`measured`: at least one; that with the fewest devices is taken as it is."""
        self._measured = sorted(measured, key=lambda each: each.spec.gpus)
        self._hosts, self._models = hosts, dict[Spec, StepModel]()
        self._links, self._jitters = hosts.link.list_rates(), np.array(JITTERS)
        self._anchor = self._measured[0]
        model = StepModel(self._anchor.spec, self._anchor.layout)
        slowed = np.array([_invert_step(model, self._anchor.step_s, self._rates(per_s)) for per_s in self._links])
        self._compute_s = slowed[:, None] / (1 + np.outer(np.ones(len(slowed)), self._jitters) * _expect_slowest(model))

    @property
    def largest(self) -> int:
        """Devices of the largest measurement."""
        return self._measured[-1].spec.gpus

    @cached_property
    def weights(self) -> Floats:
        """How likely each pair of a link's rate and a jitter is."""
        prior = np.exp(-0.5 * (self._jitters / JITTER_SCALE) ** 2) * np.gradient(self._jitters)
        found = np.outer(np.ones(len(self._links)), prior)
        logs = np.log(found / found.sum())
        for each in self._measured[1:]:
            steps = self._step_s(StepModel(each.spec, each.layout))
            error = math.hypot(ERROR, each.noise)
            logs -= 0.5 * (np.log(steps / each.step_s) / error) ** 2
        weights: Floats = np.exp(logs - logs.max())
        weights /= weights.sum()
        return weights

    @cached_property
    def link_bytes_per_s(self) -> float:
        """Return the median of the links' rates."""
        return self._quantile_of_links(0.5)

    @cached_property
    def jitter(self) -> float:
        """Return the mean of the jitters."""
        return float(self._jitters @ self.weights.sum(axis=0))

    @property
    def network(self) -> NetworkRates:
        return self._rates(self.link_bytes_per_s)

    def predict(self, spec: Spec, layout: Layout | None = None) -> PredictedRate:
        """Return the rate. Raises `SpecError` if the hosts have no room for such a training."""
        model = StepModel(spec, layout) if layout else self._model(spec)
        layout, images = model.layout, spec.gpus * spec.batch_size
        steps = self._step_s(model)
        error = self._compute_error(spec.gpus) if spec.gpus != self._anchor.spec.gpus else self._anchor.noise
        low, rate, high = (images / each for each in self._quantiles(steps, error))
        if spec == self._anchor.spec and layout == self._anchor.layout:
            rate = self._anchor.images_per_sec
        slowed = (compute := self._compute(self.link_bytes_per_s)) * (1 + self.jitter * _expect_slowest(model))
        link_s = max(0.0, model.step_s(slowed, self.network) - slowed)
        alone = self._measured[0].images_per_sec if self._anchor.spec.gpus == 1 else None
        scale = images / rate / (slowed + link_s)  # so that the parts add up to the predicted step
        return PredictedRate(
            spec=spec,
            hosts=len(set(layout.hosts.values())),
            images_per_sec=rate,
            low=min(low, rate),
            high=max(high, rate),
            efficiency=rate / (spec.gpus * alone) if alone else None,
            compute_s=compute * scale,
            jitter_s=(slowed - compute) * scale,
            link_s=link_s * scale,
            binding=_name_binding(model, compute, slowed - compute, link_s),
            is_open=self._is_link_open and high > WIDE * low,
        )

    def choose_num_ps(self, spec: Spec) -> Spec:
        """Return the spec with the fewest parameter servers that are within a hundredth of the best rate.

        It tries 1, 2, 3, 4, 6, 8, 12, ... parameter servers.
        Counts stop where links add less than a hundredth to the step, or three times as many servers bring nothing.
        """
        if not spec.mode.parameter_servers:
            return spec
        steps: dict[int, float] = {}
        compute = self._compute(self.link_bytes_per_s)
        for count in _list_counts(spec.gpus):
            model = self._model(spec.replace(num_ps=count))
            slowed = compute * (1 + self.jitter * _expect_slowest(model))
            steps[count] = model.step_s(slowed, self.network)
            fewest = min(each for each, step_s in steps.items() if step_s <= 1.01 * min(steps.values()))
            if steps[count] <= 1.01 * slowed or count >= 4 * fewest:
                break
        return spec.replace(num_ps=min(each for each, step_s in steps.items() if step_s <= 1.01 * min(steps.values())))

    def list_gains(self, spec: Spec) -> list[Gain]:
        """Return what other placements, wires, modes and servers would bring, the best first, each with its best servers."""
        found, unchanged = [], self._list_steps(spec)
        for change, changed in [("", spec), *list_changes(spec)]:
            try:
                other = self.choose_num_ps(changed)
                steps = self._list_steps(other)
            except SpecError:
                continue
            if other == spec:
                continue
            ratios = sorted(before / after for before, after in zip(unchanged, steps, strict=True))
            found.append(
                Gain(
                    change=change or f"num_ps={other.num_ps}",
                    num_ps=other.num_ps,
                    ratio=ratios[1],
                    low=ratios[0],
                    high=ratios[2],
                )
            )
        return sorted(found, key=lambda gain: -gain.ratio)

    def _list_steps(self, spec: Spec) -> list[float]:
        """Return a step's seconds at the ends and the median of the links' rates."""
        model = self._model(spec)
        rates = [self._quantile_of_links(quantile) for quantile in ((1 - COVERED) / 2, 0.5, (1 + COVERED) / 2)]
        slowest = 1 + self.jitter * _expect_slowest(model)
        return [model.step_s(self._compute(per_s) * slowest, self._rates(per_s)) for per_s in rates]

    def _quantile_of_links(self, quantile: float) -> float:
        return _weighted_quantile(self._links, self.weights.sum(axis=1), quantile)

    def _model(self, spec: Spec) -> StepModel:
        if spec not in self._models:
            self._models[spec] = StepModel(spec, self._hosts.place(spec))
        return self._models[spec]

    @property
    def _is_link_open(self) -> bool:
        return self._quantile_of_links((1 + COVERED) / 2) > WIDE * self._quantile_of_links((1 - COVERED) / 2)

    def _rates(self, per_s: float) -> NetworkRates:
        return NetworkRates(link_bytes_per_s=float(per_s))

    def _compute(self, per_s: float) -> float:
        """Return the time of computing, for a link's rate and the mean jitter."""
        at_jitter = [np.interp(self.jitter, self._jitters, row) for row in self._compute_s]
        return float(np.interp(math.log(per_s), np.log(self._links), at_jitter))

    def _step_s(self, model: StepModel) -> Floats:
        """Return the step's seconds for each link and jitter. Between three times of computing, steps are interpolated."""
        slowed = self._compute_s * (1 + self._jitters * _expect_slowest(model))
        if not model.crosses_links:
            return slowed
        found = np.empty_like(slowed)
        for row, per_s in enumerate(self._links):
            tried = np.unique(np.linspace(slowed[row].min(), slowed[row].max(), 3))
            steps = [model.step_s(float(each), self._rates(per_s)) for each in tried]
            found[row] = np.interp(slowed[row], tried, steps)
        return found

    def _compute_error(self, gpus: int) -> float:
        return ERROR + ERROR_PER_DOUBLING * max(0.0, math.log2(gpus / self.largest))

    def _quantiles(self, steps: Floats, error: float) -> tuple[float, float, float]:
        """Return the step's seconds at the upper end of the interval, the median and the lower end."""
        normal = np.array([_NORMAL.inv_cdf((number + 0.5) / 19) for number in range(19)])
        spread = np.exp(np.add.outer(np.log(steps), error * normal))
        weights = np.repeat(self.weights.ravel(), len(normal))
        edges = ((1 + COVERED) / 2, 0.5, (1 - COVERED) / 2)
        high, _, low = ((_weighted_quantile(spread.ravel(), weights, edge)) for edge in edges)
        return high, float(_weighted_quantile(steps.ravel(), self.weights.ravel(), 0.5)), low


def list_changes(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield what else a training could do with the same result: `variable_placement=split`, and the spec with it."""
    changes: list[Mapping[str, object]] = [
        {"variable_placement": "split"},
        {"wire_precision": "bf16"},
        {"variable_placement": "split", "wire_precision": "bf16"},
        *({"variable_update": mode} for mode in ("parameter_server", "distributed_replicated", "collective_all_reduce")),
    ]
    for change in changes:
        if any(getattr(spec, name) == value for name, value in change.items()):
            continue
        if "variable_placement" in change and not spec.mode.has_variable_placement:
            continue
        mode = VARIABLE_UPDATES[str(change.get("variable_update", spec.variable_update))]
        servers = {"num_ps": max(1, spec.num_ps) if mode.parameter_servers else 0}
        try:
            yield " ".join(f"{name}={value}" for name, value in change.items()), spec.replace(**change, **servers)
        except SpecError:
            continue


def _expect_slowest(model: StepModel) -> float:
    """Return how many standard deviations the slowest of all devices is expected to be above the mean; 0 where none waits.

    Blom's approximation of the largest of n normal values (Statistical Estimates and Transformed Beta-Variables, 1958).
    """
    if model.devices == 1 or not model.spec.in_lockstep:
        return 0.0
    return _NORMAL.inv_cdf((model.devices - 0.375) / (model.devices + 0.25))


def _invert_step(model: StepModel, step_s: float, network: NetworkRates) -> float:
    """Return the longest time of computing with which the step takes so long; where links alone take longer, all of it."""
    if not model.crosses_links:
        return step_s
    low, high = 0.0, step_s
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if model.step_s(middle, network) <= step_s else (low, middle)
    return high


def _name_binding(model: StepModel, compute_s: float, jitter_s: float, link_s: float) -> str:
    if max(jitter_s, link_s) < 0.02 * compute_s:
        return "computing"
    if jitter_s >= link_s:
        return f"the slowest of {model.devices} devices"
    hot = model.find_hot_stream()
    if hot is None:
        return "links between hosts"
    servers = [server for server in model.layout.servers if model.layout.hosts[server] == hot.host]
    named = servers[0] if len(servers) == 1 else f"{len(servers)} servers"
    return f"link of {named}: {hot.sizes.sum() / 1e6:.1f} MB x {hot.receivers}"


def _list_counts(most: int) -> list[int]:
    """Return 1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    found = {times * 2**power for power in range(most.bit_length()) for times in (1, 3)}
    return sorted({count for count in found if count < most} | {most})


def _weighted_quantile(values: Floats, weights: Floats, quantile: float) -> float:
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(quantile, cumulative / weights.sum(), values[order]))
