"""The limit of published rates, where it is written down what their hardware can do: data sheets, for nobody can probe it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_dtfperf.baselines.references import Reference
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.explain.probes import Link, Probes
from pytest_dtfperf.limits.limit import Limit, limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Spec


@dataclass(frozen=True)
class Hardware:
    """What a publication's system is made of. `gpu`: as nvidia-smi names it, for records/arithmetic.py."""

    gpu: str
    link_bytes_per_s: float | None = None  # of a node, in each direction; None: nobody has written it down
    source: str = ""


_P2_8XLARGE = Hardware(
    "Tesla K80", 10e9 / 8, "AWS, GPU & FPGA briefing, March 2017: 10 Gbps in a placement group; K80 for each of two GK210"
)
HARDWARE: Mapping[str, Hardware] = {
    "dgx1": Hardware("Tesla P100-SXM2-16GB", source="NVIDIA, DGX-1 data sheet: eight with NVLink, in one node"),
    "ec2-p3.16xlarge": Hardware("Tesla V100-SXM2-16GB", source="AWS, P3 instances: eight with NVLink, in one node"),
    "piz-daint": Hardware("Tesla P100-PCIE-16GB", source="the publication; what one node can send over Aries, it does not say"),
    "cscs-ec2-p2.xlarge": Hardware("Tesla K80", source="the publication; its network may exceed for a while what is promised"),
    "cscs-ec2-p2.8xlarge": _P2_8XLARGE,
    "google-ec2-p2.8xlarge": _P2_8XLARGE,
    "google-ec2-p2.8xlarge-distributed": _P2_8XLARGE,
    "gce-n1-standard-32-k80x8": Hardware("Tesla K80", source="the publication: eight in one node"),
}


def published_limit(reference: Reference) -> Limit:
    """Of a row, whose tasks are taken to have been as in 2017: a worker on each node, parameter servers beside them in turn."""
    hardware = HARDWARE.get(reference.system)
    if hardware is None or not reference.gpus or reference.mode != "training" or reference.model not in MODELS:
        return Limit(unknown={"gpus": f"what {reference.system} can do is not written down"})
    try:
        spec = _spec(reference)
    except SpecError as error:
        return Limit(unknown={"gpus": str(error)})
    nodes = reference.nodes or 1
    tasks = {f"ps:{number}": f"node {number % nodes + 1}" for number in range(spec.num_ps)}
    layout = Layout({**tasks, **{f"worker:{number}": f"node {number + 1}" for number in range(nodes)}})
    return limit(spec, layout, _links(hardware, nodes, knows_bytes=_knows_bytes(reference)), [hardware.gpu])


def _spec(reference: Reference) -> Spec:
    """Raises `SpecError` for a training that we do not know. With images of their own, what counts is the model's size."""
    mode = reference.variable_update if reference.variable_update in VARIABLE_UPDATES else "parameter_server"
    assert mode
    return Spec(
        model=reference.model,
        batch_size=reference.batch_size or MODELS[reference.model].batch_size,
        gpus=reference.gpus,
        num_ps=(reference.num_ps or 0) if VARIABLE_UPDATES[mode].parameter_servers else 0,
        variable_update=mode,
        precision=reference.precision,
    )


def _knows_bytes(reference: Reference) -> bool:
    """Whether the publication says all that bytes per step follow from."""
    return None not in (reference.batch_size, reference.nodes, reference.variable_update, reference.num_ps)


def _links(hardware: Hardware, nodes: int, *, knows_bytes: bool) -> Probes:
    rate = hardware.link_bytes_per_s
    if rate is None or not knows_bytes:
        return Probes()
    names = [f"node {number + 1}" for number in range(nodes)]
    ways = (way for name in names for way in (f"*>{name}", f"{name}>*"))
    return Probes(links={way: Link(per_s=rate, spread=0.0, repeats=1) for way in ways})
