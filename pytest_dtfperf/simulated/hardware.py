"""The keys of a simulated cluster, and its hardware as they describe it. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dtfperf.clusters.file import COUNT, SECONDS, TEXT, TIME, Validator
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.datamodel.fingerprint import GpuModel, HostFingerprint, HostHardware, HostLoad, HostSoftware
from pytest_dtfperf.datamodel.measurement import SIMULATED
from pytest_dtfperf.errors import describe_unknown_name, show_value
from pytest_dtfperf.formats import RATE_FORM, format_count, parse_link_rate, parse_time_budget, with_prefix
from pytest_dtfperf.limits.needs import compute_flop
from pytest_dtfperf.spec import MODELS, Spec

CORES_PER_DEVICE = 4
MEMORY_GIB = 64
CORE_FLOP_PER_S, MEMORY_BYTES_PER_S, DECODED_PER_S = 5e10, 5e10, 300.0
MOST_HOSTS = 65_536


def _is_link_rate(value: Any) -> bool:
    try:
        return isinstance(value, str) and parse_link_rate(value) > 0
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _table_of(required: Mapping[str, Validator], optional: Mapping[str, Validator]) -> Callable[[Any], bool]:
    """Return the check of a list of tables with these keys."""
    every = {**required, **optional}

    def is_valid(value: Any) -> bool:
        return isinstance(value, list) and all(
            isinstance(each, dict)
            and required.keys() <= each.keys() <= every.keys()
            and all(every[name].accepts(given) for name, given in each.items())
            for each in value
        )

    return is_valid


_HOST = Validator("the number of a host", lambda value: type(value) is int and 0 <= value < MOST_HOSTS)
_LINK = Validator(RATE_FORM, _is_link_rate)
_FACTOR = Validator("a number above 0", lambda value: _is_number(value) and 0 < value <= 1000)
_NOISE = Validator("a fraction below 0.5, as 0.01 for 1 %", lambda value: _is_number(value) and 0 <= value < 0.5)
_TIME = Validator("a time, as 20min", lambda value: value != "none" and TIME.accepts(value))

KEYS: Mapping[str, Validator] = {
    "hosts": Validator(f"a whole number from 1 to {MOST_HOSTS}", lambda value: COUNT.accepts(value) and value <= MOST_HOSTS),
    "gpus_per_host": COUNT,
    "kind": Validator("text of at most 60 characters", lambda value: TEXT.accepts(value) and len(value) <= 60),
    "rates": Validator(
        "a table of models and their images/sec on one device",
        lambda value: isinstance(value, dict) and all(map(SECONDS.accepts, value.values())),
    ),
    "flop_per_s": SECONDS,
    "link": _LINK,
    "noise": _NOISE,
    "run_noise": _NOISE,
    "speed": _FACTOR,
    "queue": _TIME,
    "seed": Validator("a whole number of at least 0", lambda value: type(value) is int and 0 <= value < 2**63),
    "slow_hosts": Validator(
        "a list of tables with host and slowdown, and perhaps after, as { host = 3, slowdown = 1.3 }",
        _table_of({"host": _HOST, "slowdown": _FACTOR}, {"after": _TIME}),
    ),
    "slow_links": Validator(
        "a list of tables with host and link, and perhaps after, as { host = 3, link = '1gbit', after = '10min' }",
        _table_of({"host": _HOST, "link": _LINK}, {"after": _TIME}),
    ),
    "deaths": Validator(
        "a list of tables with host and step, and perhaps run, as { host = 3, step = 50, run = 2 }",
        _table_of({"host": _HOST, "step": COUNT}, {"run": COUNT}),
    ),
}


@dataclass(frozen=True)
class HostFault:
    """A change of one host's speed or link from some time of the allocation on."""

    host: int
    after_s: float
    slowdown: float = 1.0
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class HostDeath:
    """The end of one host in a measured step of a run of the session."""

    host: int
    step: int
    run: int


@dataclass(frozen=True, kw_only=True)
class SimulatedHardware:
    """What a simulated cluster consists of."""

    name: str  # of the cluster
    devices_per_host: int
    has_gpus: bool
    kind: str = "device"
    rates: Mapping[str, float] = field(default_factory=dict)  # model -> images/sec of one device
    flop_per_s: float = 5e12  # that one device reaches in the training of any other model
    link_bytes_per_s: float = 1.25e9
    noise: float = 0.01  # standard deviation of a device's time of computing, of each step
    run_noise: float = 0.002  # ... of each run, for all devices together
    speed: float = 1.0
    queue_s: float = 0.0
    seed: int | None = None
    faults: Sequence[HostFault] = ()
    deaths: Sequence[HostDeath] = ()

    @property
    def cores(self) -> int:
        """The cores of each host."""
        return self.devices_per_host * CORES_PER_DEVICE

    @property
    def fingerprint(self) -> HostFingerprint:
        """What each host reports of itself. Names have the mark and the cluster, so that no other hardware is equal."""
        gpu = GpuModel(name=f"{SIMULATED} {self.kind} of {self.name}", memory_gib=MEMORY_GIB)
        return HostFingerprint(
            hardware=HostHardware(
                cpu=f"{SIMULATED} {self.kind if not self.has_gpus else 'CPU'} of {self.name}",
                cores=self.cores,
                memory_gib=MEMORY_GIB * self.devices_per_host,
                interconnect=f"{SIMULATED} {with_prefix(8 * self.link_bytes_per_s, 'bit/s')}",
                gpus=[gpu] * self.devices_per_host if self.has_gpus else [],
            ),
            software=HostSoftware(python=SIMULATED, tensorflow=None, cuda=None, kernel=SIMULATED, driver=None),
            state=HostLoad(load=0.0),
        )

    def select_hosts(self, numbers: Sequence[int]) -> "SimulatedHardware":
        """Return the hardware of these hosts, which have the numbers from 0 on in it."""
        number_of = {old: new for new, old in enumerate(numbers)}
        faults = [replace(each, host=number_of[each.host]) for each in self.faults if each.host in number_of]
        deaths = [replace(each, host=number_of[each.host]) for each in self.deaths if each.host in number_of]
        return replace(self, faults=faults, deaths=deaths)

    def compute_s(self, spec: Spec) -> float:
        """Return the seconds of one device's step without noise. Raises `SpecError` for models that are not known here."""
        images_per_s = self.rates.get(spec.model, 0.0) * self.speed
        if images_per_s:
            return spec.batch_size / images_per_s
        needed = compute_flop(spec)
        return (needed or self.flop_per_s) / (self.flop_per_s * self.speed)

    def slowdown(self, host: int, now_s: float) -> float:
        """Return how many times as long a host computes."""
        return math.prod(each.slowdown for each in self.faults if each.host == host and each.after_s <= now_s)

    def link_of(self, host: int, now_s: float) -> float:
        """Return the bytes/s of a host's link."""
        slow = [each.link_bytes_per_s for each in self.faults if each.host == host and each.after_s <= now_s]
        return min([self.link_bytes_per_s, *(each for each in slow if each is not None)])

    def describe_state(self, host: str, window_s: float) -> Mapping[str, Any]:
        """Return the state of a host, by its name, that nothing has disturbed for a number of seconds."""
        own_s = round(0.1 * window_s * self.cores, 6)
        free = {"before": 50_000.0, "after": 50_000.0}
        return {
            "machine": host,
            "cpus": f"0-{self.cores - 1}",
            "cores": self.cores,
            "quota": False,
            "window_s": window_s,
            "cpu": {"busy_s": own_s, "own_s": own_s, "controller_s": 0.0, "steal_s": 0.0},
            "load": {"before": 0.0, "after": 0.0},
            "memory": {"available_mib": free, "some_s": 0.0, "full_s": 0.0, "swapped_in_mib": 0},
            "clock_mhz": {"before": None, "after": None, "most": None},
            "throttled_s": None,
        }

    def list_readings(self, host: int, now_s: float, families: Sequence[str], gpus: int) -> Iterator[tuple[str, float]]:
        """Yield the name and the rate of each reading of these families that a probe of a host has, without noise."""
        slowdown = self.slowdown(host, now_s)
        of_cores = 1.0 if self.has_gpus else slowdown
        for family in families:
            match family:
                case "core" | "cores":
                    cores = 1 if family == "core" else self.cores
                    for name in ("matmul", "convolution"):
                        yield f"{family}.{name}", cores * CORE_FLOP_PER_S / of_cores
                case "gpu":
                    for gpu in range(gpus):
                        for name in ("matmul", "convolution"):
                            yield f"gpu.{gpu}.{name}", 2 * self.flop_per_s * self.speed / slowdown
                case "memory":
                    yield "memory", MEMORY_BYTES_PER_S / of_cores
                case "input":
                    yield "input", DECODED_PER_S * self.cores / of_cores


def share_links(streams: Mapping[tuple[int, int], int], link_of: Callable[[int], float]) -> Mapping[tuple[int, int], float]:
    """Return the rates of simultaneous streams from host to host, which are max-min fair for their TCP connections.

    The connections through the links that allow each of them least have even parts of them; others share what these leave
    (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

    Args:
        streams: source and target -> number of connections.
        link_of: the bytes/s of a host's link in each direction.
    """
    of_link: dict[tuple[str, int], set[tuple[int, int]]] = defaultdict(set)
    for source, target in streams:
        of_link["out", source].add((source, target))
        of_link["in", target].add((source, target))
    left = {link: link_of(link[1]) for link in of_link}
    rates: dict[tuple[int, int], float] = {}
    while of_link:
        parts = {link: left[link] / sum(streams[each] for each in shared) for link, shared in of_link.items()}
        least = min(parts.values())
        for stream in {each for link, part in parts.items() if part <= least * (1 + 1e-9) for each in of_link[link]}:
            rates[stream] = least * streams[stream]
            for link in (("out", stream[0]), ("in", stream[1])):
                of_link[link].remove(stream)
                left[link] -= rates[stream]
                if not of_link[link]:
                    del of_link[link]
    return rates


def read_hardware(config: ClusterConfig) -> SimulatedHardware:
    """Return the hardware that a cluster's keys, which are valid, describe."""
    keys = config.backend_keys
    links = [(each, None) for each in keys.get("slow_hosts", ())] + [
        (each, parse_link_rate(each["link"])) for each in keys.get("slow_links", ())
    ]
    values = {
        name: keys[name] for name in ("kind", "rates", "flop_per_s", "noise", "run_noise", "speed", "seed") if name in keys
    }
    if "link" in keys:
        values["link_bytes_per_s"] = parse_link_rate(keys["link"])
    return SimulatedHardware(
        name=config.name,
        devices_per_host=keys.get("gpus_per_host") or config.devices_per_host or 1,
        has_gpus=config.device != "cpu",
        queue_s=_seconds(keys.get("queue")),
        faults=[HostFault(e["host"], _seconds(e.get("after")), e.get("slowdown", 1.0), link) for e, link in links],
        deaths=[HostDeath(each["host"], each["step"], each.get("run", 1)) for each in keys.get("deaths", ())],
        **values,
    )


def find_conflict(table: Mapping[str, Any]) -> str | None:
    """Return the first mistake in keys that are valid on their own; None if there is none."""
    if "devices_per_host" not in table and "gpus_per_host" not in table:
        return "lacks gpus_per_host: simulated hosts have no devices that could be counted"
    if unknown := next((name for name in table.get("rates", {}) if name not in MODELS), None):
        return f"rates: {describe_unknown_name('model', unknown, MODELS)}"
    hosts = table.get("hosts", 1)
    for key in ("slow_hosts", "slow_links", "deaths"):
        for each in table.get(key, ()):
            if each["host"] >= hosts:
                return f"{key}: there is no host {show_value(each['host'])} of {format_count(hosts, 'host')}: the first is 0"
    return None


def _seconds(text: str | None) -> float:
    return (parse_time_budget(text) or 0.0) if text else 0.0
