"""Compute a hash of what a graph computes. Graphs that differ only in names, order and seeds have the same hash.

The hash covers of an operation its kind, its attributes, the kind of its device and task, and its neighbours. By Weisfeiler and
Leman's colour refinement ("A reduction of a graph to a canonical form", 1968) each operation begins with a colour of its own,
and takes in those of its neighbours eight times over; the hash is of the sorted colours. Constants count by value where they
set what is computed (axes, paddings, sizes: int32), and not where they are operands: another learning rate makes no other
program.

Pure: needs numpy and the protocol buffers that it is given, but not TensorFlow's run time.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytest_dtfperf.datamodel.task_report import StepGraph

ROUNDS = 8  # how far one sees; over InceptionV3's 3,000 operations and 5,000 edges a few milliseconds
DIGITS = 12

# Attributes that name things, that identify a group of tasks, or that repeat what edges and types show.
_NAMES = frozenset(
    {
        "allowed_devices", "config", "config_proto", "container", "debug_name", "executor_type", "group_key", "instance_key",
        "metadata", "name", "recv_device", "seed", "seed2", "send_device", "send_device_incarnation", "shared_name",
        "tensor_name",
    }
)  # fmt: skip
# Of those that TensorFlow's own passes and libraries write, these alone change what runs.
_INTERNAL = frozenset({"_XlaCompile", "_XlaMustCompile"})
# Operations whose inputs are keys of groups: numbers that a process gives out one after the other.
_KEYED = ("Collective",)
_INT32 = 3  # DT_INT32, in tensorflow/core/framework/types.proto
_MOST_VALUES = 64  # of a constant that shapes something; larger ones are data

Colours = np.ndarray[Any, np.dtype[np.uint64]]


def describe_computation(graph: Any, fetches: Collection[str] = (), *, without: Collection[str] = ()) -> StepGraph:
    """Describe the operations of a `GraphDef` that `fetches` need, or all of them except for `without`."""
    functions = _Functions(graph.library.function)
    nodes = _find_needed_nodes(graph.node, fetches) if fetches else [node for node in graph.node if node.name not in without]
    colours, operations = _refine_colours(nodes, functions, arguments=())
    return StepGraph(hash=_hash(colours), operations=dict(sorted(operations.items())))


def _find_needed_nodes(nodes: Sequence[Any], fetches: Collection[str]) -> list[Any]:
    by_name = {node.name: node for node in nodes}
    found: dict[str, Any] = {}
    left = list(fetches)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = by_name[name]
            left.extend(_split_input(text)[0] for text in by_name[name].input)
    return list(found.values())


def _split_input(text: str) -> tuple[str, str]:
    """Return an input's operation and the number of its output; "^" stands for a control input."""
    if text.startswith("^"):
        return text[1:], "^"
    name, _, output = text.partition(":")
    return name, output or "0"


@dataclass
class _Functions:
    """The functions that a graph calls, each hashed once. A recursive call counts as a function without operations."""

    definitions: Sequence[Any]
    _known: dict[str, tuple[str, Counter[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name = {each.signature.name: each for each in self.definitions}

    def __getitem__(self, name: str) -> tuple[str, Counter[str]]:
        if name not in self._known:
            self._known[name] = "", Counter()
            if definition := self._by_name.get(name):
                self._known[name] = self._hash_function(definition)
        return self._known[name]

    def _hash_function(self, definition: Any) -> tuple[str, Counter[str]]:
        signature = definition.signature
        colours, operations = _refine_colours(definition.node_def, self, arguments=signature.input_arg)
        flags = [f"{name}={definition.attr[name].b}" for name in sorted(_INTERNAL) if name in definition.attr]
        return _digest(_hash(colours), *flags, *(each.type for each in signature.output_arg)).hex(), operations


def _refine_colours(nodes: Sequence[Any], functions: _Functions, arguments: Sequence[Any]) -> tuple[Colours, Counter[str]]:
    """Return the colours of all operations and arguments, and how many operations there are of each kind."""
    index = {each.name: i for i, each in enumerate([*arguments, *nodes])}
    by_name = {node.name: node for node in nodes}
    keys = _find_keys(nodes)
    operations: Counter[str] = Counter()
    first = [_digest("argument", i, each.type) for i, each in enumerate(arguments)]
    for node in nodes:
        device = _describe_device(node, by_name)
        first.append(_digest(node.op, device, *_iterate_attributes(node, functions, operations, valued=node.name not in keys)))
        operations[node.op] += 1
    sources, consumers, hows = [], [], []
    for node in nodes:
        for position, text in enumerate(node.input):
            name, output = _split_input(text)
            if name not in index:  # it is in `without`
                continue
            sources.append(index[name])
            consumers.append(index[node.name])
            hows.append(_number(_digest("^" if output == "^" else f"{position} {output}")))
    colours = np.frombuffer(b"".join(first), dtype="<u8").astype(np.uint64)
    edges = np.array(sources, dtype=np.intp), np.array(consumers, dtype=np.intp), np.array(hows, dtype=np.uint64)
    return _spread(colours, *edges), operations


def _spread(colours: Colours, sources: Any, consumers: Any, hows: Colours) -> Colours:
    """Combine each colour with those of its inputs, by position, and of its consumers, as sums without an order."""
    for _ in range(ROUNDS):
        inputs, outputs = np.zeros_like(colours), np.zeros_like(colours)
        np.add.at(inputs, consumers, _mix_bits(colours[sources] ^ hows))
        np.add.at(outputs, sources, _mix_bits(_mix_bits(colours[consumers]) ^ hows))
        colours = _mix_bits(_mix_bits(_mix_bits(colours) + inputs) + outputs)
    return colours


def _mix_bits(values: Colours) -> Colours:
    """Let every bit of a value decide over every bit of the result: SplitMix64's finaliser (Steele, Lea and Flood, 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _find_keys(nodes: Sequence[Any]) -> set[str]:
    """Return the constants among the inputs of collective operations: keys that depend on what was built before."""
    return {_split_input(text)[0] for node in nodes if node.op.startswith(_KEYED) for text in node.input}


def _describe_device(node: Any, by_name: Mapping[str, Any]) -> str:
    """Return the kind of device and the job, without numbers. A node that is colocated (`_class`) has the other node's."""
    seen = set()
    while not node.device and node.name not in seen:
        seen.add(node.name)
        classes = node.attr["_class"].list.s if "_class" in node.attr else ()
        beside = [name for word in classes if (name := word.decode().removeprefix("loc:@")) in by_name]
        if not beside:
            break
        node = by_name[beside[0]]
    return " ".join(_iterate_device_parts(node.device))


def _iterate_device_parts(device: str) -> Iterator[str]:
    for part in device.split("/"):
        kind, _, rest = part.partition(":")
        if kind == "job" and rest != "localhost":  # what the eager runtime calls a process that has no cluster yet
            yield rest
        elif kind == "device":
            yield rest.partition(":")[0].upper()
        elif kind.upper() in ("CPU", "GPU"):
            yield kind.upper()


def _iterate_attributes(node: Any, functions: _Functions, operations: Counter[str], *, valued: bool) -> Iterator[str]:
    for name in sorted(node.attr):
        if name in _NAMES or (name.startswith("_") and name not in _INTERNAL):
            continue
        value = node.attr[name]
        called = [value.func.name] if value.WhichOneof("value") == "func" else [each.name for each in value.list.func]
        if called:
            for each in called:
                body, within = functions[each]
                operations.update(within)
                yield f"{name}={body}"
        elif value.WhichOneof("value") == "tensor":
            yield f"{name}={_describe_tensor(value.tensor, valued=valued)}"
        else:
            yield f"{name}={value.SerializeToString(deterministic=True).hex()}"


def _describe_tensor(tensor: Any, *, valued: bool) -> str:
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    values = ""
    if valued and tensor.dtype == _INT32 and (count := int(np.prod(shape))) <= _MOST_VALUES:
        # As bytes, or as numbers of which the last is repeated: that depends on the program that made it.
        content = tensor.tensor_content
        given = [int(each) for each in (np.frombuffer(content, dtype="<i4") if content else tensor.int_val)]
        values = str([given[min(i, len(given) - 1)] if given else 0 for i in range(count)])
    return f"{tensor.dtype} {shape} {values}"


def _digest(*parts: object) -> bytes:
    """Return a hash of eight bytes."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _hash(colours: Colours) -> str:
    return hashlib.blake2b(np.sort(colours).astype("<u8").tobytes(), digest_size=16).hexdigest()[:DIGITS]
