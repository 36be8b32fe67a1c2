"""Whether two measurements can be compared: which parts of their fingerprints must match, and which are only noted. Pure.

A fingerprint has these parts, of which any may be missing:

    hardware   must match: type and number of processors, and the network. A value that one side lacks is only noted
    software   the major versions of numerical libraries must match; all else is under test, and is only noted
    program    must match: TensorFlow's graphs, and the settings of their execution
    state      not compared: load and clocks belong to a run, and may taint it

A system is named after its hardware, because a cluster's hardware may change under the same name. The number of hosts is
not part of the name, because devices are part of the spec; nor is the software, because its changes are under test.
"""

import re
from collections import Counter
from collections.abc import Mapping

from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware, TrainedProgram
from pytest_dtfperf.spec import Spec

MEMORY_TOLERANCE = 0.10  # kernels and hypervisors reserve parts of the same memory before they report the rest ...
MEMORY_SLACK_GIB = 1  # ... and hosts report whole GiB, so that a small difference may change the number by one

Versions = Mapping[str, str | None]

# Text that makers add to the name of a CPU: trademarks, its type, its clock (which is state, not identity).
_CPU_NOISE = re.compile(r"\((?:r|tm)\)|\bcpu\b|\bprocessor\b|@.*", re.IGNORECASE)


def system_name(hardware: Hardware) -> str:
    """Return a name for one host's hardware that is a valid file name: `8x-nvidia-tesla-p100`, `cpu-amd-epyc-9b45-2c`."""
    counts = Counter(_slug(gpu.name) for gpu in hardware.gpus)
    if counts:
        return "-and-".join(f"{count}x-{name}" for name, count in sorted(counts.items()))
    return f"cpu-{_slug(_CPU_NOISE.sub(' ', hardware.cpu or ''))}-{hardware.cores or 0}c"


def hardware_differences(expected_hardware: Hardware, found_hardware: Hardware) -> list[str]:
    """Return the differences in the parts that must match, one phrase each: `cores: 4 before, 2 after`. Empty: comparable."""
    then, now = _identity(expected_hardware), _identity(found_hardware)
    found = [(part, then[part], now[part]) for part in then if then[part] != now[part]]
    parts = ["memory"] + (["GPU memory"] if then["gpus"] == now["gpus"] else [])  # not for different GPUs
    sizes = [(part, _gib(expected_hardware, part), _gib(found_hardware, part)) for part in parts]
    found += [(part, _size(a), _size(b)) for part, a, b in sizes if not _is_near(a, b)]
    differences = _find_differences(expected_hardware, found_hardware)
    found += [(part, a, b) for part, a, b in differences if a and b and (part != "kind of CPU" or then["cpu"] == now["cpu"])]
    return [format_difference(*each) for each in found]


def format_difference(part: str, then: str, now: str) -> str:
    """Return a phrase for a difference that forbids a comparison."""
    return f"{part}: {then} before, {now} after"


def list_unsure(then_hardware: Hardware, now_hardware: Hardware) -> list[str]:
    """Return optional parts that only one side has, one phrase each: `interconnect Ethernet 10 Gb/s -> unknown`."""
    differences = _find_differences(then_hardware, now_hardware)
    return [f"{part} {a or 'unknown'} -> {b or 'unknown'}" for part, a, b in differences if not (a and b)]


def memory_changes(then_hardware: Hardware, now_hardware: Hardware) -> list[str]:
    """Return differences of memory sizes within the tolerance, one phrase each: `memory 62 GiB -> 61 GiB`."""
    sizes = [(part, _gib(then_hardware, part), _gib(now_hardware, part)) for part in ("memory", "GPU memory")]
    return [f"{part} {_size(a)} -> {_size(b)}" for part, a, b in sizes if a != b and _is_near(a, b)]


def software_changes(then: Versions, now: Versions) -> list[str]:
    """Return changes of the software, one phrase each: `tensorflow 2.20.0 -> 2.21.0`. They do not forbid a comparison."""
    return [
        f"{name} {then.get(name) or 'none'} -> {now.get(name) or 'none'}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def _identity(hardware: Hardware) -> dict[str, str]:
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    return {
        "cpu": hardware.cpu or "unknown",
        "cores": str(hardware.cores or "unknown"),
        "devices of shared cores": str(hardware.cpu_devices or "none"),
        "gpus": ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items())) or "none",
        "simulated cluster": hardware.simulated or "none",
        "cloud": ", ".join(f"{name}={value}" for name, value in sorted(hardware.cloud.items()) if value is not None) or "none",
    }


def _find_differences(then_hardware: Hardware, now_hardware: Hardware) -> list[tuple[str, str, str]]:
    """Return differences in parts that must match if both sides have them; a missing value is empty.

    Virtual machines lack the interface's speed, and some processors the kind of CPU.
    """
    pairs = [
        ("kind of CPU", then_hardware.cpu_kind or "", now_hardware.cpu_kind or ""),
        ("interconnect", then_hardware.interconnect or "", now_hardware.interconnect or ""),
    ]
    return [(what, then, now) for what, then, now in pairs if then != now]


def _gib(hardware: Hardware, part: str) -> int:
    """Return the size in GiB; 0 if unknown; of several GPUs the smallest, which is the bottleneck."""
    if part == "memory":
        return hardware.memory_gib or 0
    return min((gpu.memory_gib or 0 for gpu in hardware.gpus), default=0)


def _is_near(then: int, now: int) -> bool:
    if not then or not now:
        return then == now
    return abs(now - then) <= max(MEMORY_TOLERANCE * then, MEMORY_SLACK_GIB)


def _size(gib: int) -> str:
    return f"{gib} GiB" if gib else "unknown"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


# A new major version may have another speed, without a test of that. Drivers and kernels have major versions, too, but
# users upgrade them and want to see the effect.
MAJORS = ("tensorflow", "cuda")
_UNKNOWN = "unknown"
_MOST_KINDS = 6  # of operations that are listed for different graphs: the largest differences show the change


def list_forbidden_differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return what forbids a comparison of the same training, one phrase each: `cores: 4 before, 2 after`. Empty: comparable."""
    return list_host_differences(then, now) + list_program_differences(then, now)


def list_host_differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return differences in hosts and software that forbid a comparison, for trainings with different graphs."""
    return list_hardware_differences(then, now) + _majors(then, now)


def list_hardware_differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return differences in the hardware that must match, one phrase each. Empty: it is the same as far as known."""
    return hardware_differences(then.hardware, now.hardware)


def describe_replacements(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return changes that end a series on the same hardware: `tensorflow 2.20.0 -> 3.0.0`, `training graph: 36 Conv2D less`."""
    before, after = then.software, now.software
    majors = [name for name in MAJORS if _majors_of(name, before, after)]
    return [f"{name} {before[name]} -> {after[name]}" for name in majors] + list_program_differences(then, now)


def describe_notes(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return certain or possible changes that do not forbid a comparison: `tensorflow 2.20.0 -> 2.21.0`."""
    return (
        software_changes(then.software, now.software)
        + memory_changes(then.hardware, now.hardware)
        + list_unsure(then.hardware, now.hardware)
        + _list_unsure_program(then.program, now.program)
    )


def list_program_differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return the differences in the graphs and in the settings of their execution, one phrase each."""
    return _list_program_differences(then.program, now.program)


def _list_program_differences(then: TrainedProgram, now: TrainedProgram) -> list[str]:
    """Compare only what both sides have: an external command has no graph."""
    found = [_graphs(then, now)] if then.graph and now.graph and then.graph != now.graph else []
    for job in sorted(then.settings.keys() & now.settings.keys()):
        before, after = then.settings[job], now.settings[job]
        found += [
            format_difference(f"{name} of {job} tasks", before.get(name, "unset"), after.get(name, "unset"))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
    return found


def _graphs(then: TrainedProgram, now: TrainedProgram) -> str:
    """Return how two graphs differ: `training graph: 36 Conv2D less, 36 MatMul more`."""
    before, after = then.operations, now.operations
    changes = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in {*before, *after}}
    largest = sorted((kind for kind in changes if changes[kind]), key=lambda kind: (-abs(changes[kind]), kind))
    parts = [f"{abs(changes[kind])} {kind} {'more' if changes[kind] > 0 else 'less'}" for kind in largest[:_MOST_KINDS]]
    if len(largest) > _MOST_KINDS:
        parts.append(f"and {len(largest) - _MOST_KINDS} kinds more")
    return f"training graph: {', '.join(parts) or 'the same operations, with other attributes or connections'}"


def _list_unsure_program(then: TrainedProgram, now: TrainedProgram) -> list[str]:
    if then.graph == now.graph or (then.graph and now.graph):
        return []
    before, after = (f"graph {each.graph}" if each.graph else _UNKNOWN for each in (then, now))
    return [f"training program {before} -> {after}"]


def _majors(then: Fingerprint, now: Fingerprint) -> list[str]:
    before, after = then.software, now.software
    found = {name: _majors_of(name, before, after) for name in MAJORS}
    return [format_difference(name, *majors) for name, majors in found.items() if majors]


def _majors_of(name: str, then: Versions, now: Versions) -> tuple[str, str] | None:
    """Return both major versions of a part of the software; None if they are equal, or one is unknown."""
    before, after = _major(then.get(name)), _major(now.get(name))
    return (before, after) if before and after and before != after else None


def _major(version: str | None) -> str | None:
    """Return `2.x`; for mixed hosts with joined versions, each: `1.x | 2.x`."""
    numbers = sorted({int(number) for number in re.findall(r"(?:^|\| )(\d+)", version or "")})
    return " | ".join(f"{number}.x" for number in numbers) or None


EXCHANGE_FIELDS = ("variable_placement", "wire_precision")  # of a spec


def is_same_but_for_exchange(key: str, other: str) -> bool:
    """Return whether two keys of specs differ only in these fields."""
    return _rest(key) == _rest(other)


def format_exchange(key: str, other: str) -> str:
    """Return `variable_placement=greedy, this with variable_placement=split`."""
    fields, other_fields = _parse_key(key), _parse_key(other)
    differing = [name for name in EXCHANGE_FIELDS if fields.get(name) != other_fields.get(name)]
    one, two = (
        " ".join(f"{name}={text.get(name, _get_default(name))}" for name in differing) for text in (fields, other_fields)
    )
    return f"{one}, this with {two}"


def _parse_key(key: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in key.split())


def _rest(key: str) -> dict[str, str]:
    return {name: value for name, value in _parse_key(key).items() if name not in EXCHANGE_FIELDS}


def _get_default(name: str) -> str:
    """Return the default value of a field that a key omits."""
    return str(Spec.__dataclass_fields__[name].default)
