"""Cases of `dtfperf qualify` with its real probes, on machines in network namespaces: slow links, processors, disks, and none.

    python -m tests.real.qualify_cases --minutes=30 --output=FILE    all cases in a drawn order, a line for each, then a table

Cases that have a result in FILE are not run again: to go on with a campaign, use the same seed and file.

Machines of cases without links have CPU quotas, so that all of them together do not need more cores than this machine has.
Machines of cases with a slow disk read files of their own, at a limited rate.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from tests.clusters.ssh.lab import Lab, why_not
from tests.machines.control_groups import limit_cpu, limit_disk, why_no_disk_limit, why_no_quota
from tests.machines.machine import Machine
from tests.plugin.conftest import REPOSITORY

USUAL = "100mbit"  # of every link: slow enough that other load on this machine does not limit it
USUAL_BIT_PER_S = 1e8
ENDS_S = 1800
INTO, OUT_OF, BETWEEN, INTO_TWO = "into a host", "out of a host", "between two hosts", "into two hosts"
QUOTA, TWO_QUOTAS, NEIGHBOUR, BOTH = "CPU quota", "two CPU quotas", "memory neighbour", "CPU quota, and into another host"
DISK = "disk"
EQUAL, EQUAL_QUOTAS = "none", "none, with equal CPU quotas"
LINK_KINDS = (INTO, OUT_OF, BETWEEN, INTO_TWO)
QUOTA_KINDS = (QUOTA, TWO_QUOTAS, NEIGHBOUR, BOTH, EQUAL_QUOTAS)
DRAWS = {4: 3, 6: 1, 8: 1}  # cases of each number of hosts: more hosts take longer
LOSSES = (0.4, 0.6, 0.8)  # losses below 10 % of a link are tolerated, and those from 25 % on are found
MOST_ROUNDS = 6  # that confirm a loss: after three, one reading in ten that is slow by chance could explain each loss
DISK_BYTES_PER_S = 4e6  # so slow that the cores can decode several times as many images
IMAGES, IMAGE_EDGE = 640, 320  # more bytes than a probe reads; edge in pixels
CORES_SHARE = 0.8  # of this machine's cores, that all quotas together allow
# Copies in memory as fast as it can, in the group of one machine: it also takes a part of that machine's quota.
_COPY = "import numpy as np\na, b = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8)\nwhile True: np.copyto(b, a)"


@dataclass(frozen=True)
class MachineCase:
    """One lab, and what is slow in it."""

    kind: str
    hosts: int
    loss: float
    draw: int

    def __str__(self) -> str:
        return f"{self.kind}-{self.hosts}-{self.loss:g}-{self.draw}"


def list_cases() -> list[MachineCase]:
    """Return all cases."""
    links = [
        MachineCase(kind, hosts, loss, draw)
        for kind, hosts, loss in product(LINK_KINDS, DRAWS, LOSSES)
        for draw in range(DRAWS[hosts])
        if kind != INTO_TWO or hosts > 4  # two of four leave no majority, and nothing is judged
    ]
    one = [MachineCase(kind, 4, loss, draw) for kind, loss, draw in product((QUOTA, BOTH), (0.3, 0.5), range(3))]
    two = [MachineCase(TWO_QUOTAS, 6, loss, draw) for loss, draw in product((0.3, 0.5), range(3))]
    disks = [MachineCase(DISK, 4, loss, draw) for loss, draw in product(LOSSES, range(2))]
    neighbours = [MachineCase(NEIGHBOUR, 4, 0.5, draw) for draw in range(4)]
    quiet = [MachineCase(EQUAL, hosts, 0.0, draw) for hosts, draws in DRAWS.items() for draw in range(6 * draws)]
    return [*links, *one, *two, *disks, *neighbours, *quiet, *(MachineCase(EQUAL_QUOTAS, 4, 0.0, draw) for draw in range(8))]


def order_cases(cases: Sequence[MachineCase], seed: int) -> list[MachineCase]:
    """Return the cases in a drawn order in which kinds take turns."""
    drawn = Random(seed).sample(cases, len(cases))
    number: Counter[str] = Counter()
    turns: list[tuple[int, MachineCase]] = []
    for case in drawn:
        turns.append((number[case.kind], case))
        number[case.kind] += 1
    return [case for _, case in sorted(turns, key=lambda each: each[0])]


def why_no_case(case: MachineCase) -> str | None:
    """Return why this machine cannot run a case, or None."""
    if case.kind == DISK:
        return why_not(namespaces=True) or why_no_disk_limit(Path(tempfile.gettempdir()))
    return why_not(namespaces=True) or (why_no_quota() if case.kind in QUOTA_KINDS else None)


@dataclass(frozen=True)
class CaseOutcome:
    """What a qualification must name and what it names: hosts, links as `m3: link in`, and pairs as `m1>m2`."""

    expected: set[str]
    named: set[str]
    fit: set[str]  # hosts that are called fit
    reasons: Mapping[str, str]  # of each host that is not fit

    @property
    def is_right(self) -> bool:
        return self.expected == self.named

    @property
    def is_false_fit(self) -> bool:
        """Whether a host that is slow by itself or in a link is called fit. A slow pair leaves its hosts fit."""
        return any(each.partition(":")[0] in self.fit for each in self.expected)


def run_case(case: MachineCase, folder: Path) -> CaseOutcome:
    """Return the outcome of a qualification."""
    with Lab(case.hosts, namespaces=True, rate=USUAL) as lab, slow_down(lab, case) as expected:
        found = qualify(lab, folder, *(give_files(lab, folder / "data") if case.kind == DISK else ()))
    return CaseOutcome(
        expected,
        list_named(found, case),
        {host for host, each in found["hosts"].items() if each["verdict"] == "FIT"},
        {host: each["reason"] for host, each in found["hosts"].items() if "reason" in each},
    )


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an output file that have a result: their cases neither failed nor were skipped."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [each for each in lines if "right" in each]


def summarise(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the lines of a campaign by kind, with the numbers of cases.

    A case is right if exactly what is slow is named. It counts as not judged if any host without a name is not judged.
    """
    columns = ("right", "missed", "false name", "slow host called fit", "not judged", "failed or skipped")
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        kind = counts.setdefault(line["kind"], Counter())
        kind["cases"] += 1
        if "right" not in line:
            kind["failed or skipped"] += 1
            continue
        expected, named = set(line["expected"]), set(line["named"])
        kind["right"] += line["right"]
        kind["missed"] += not expected <= named
        kind["false name"] += not named <= expected
        kind["slow host called fit"] += line["false_fit"]
        kind["not judged"] += bool(line["reasons"].keys() - {each.partition(":")[0] for each in named})
    rows = [
        f"| {kind} | {each['cases']} | {' | '.join(str(each[name]) for name in columns)} |"
        for kind, each in sorted(counts.items())
    ]
    return "\n".join([f"| Slow | Cases | {' | '.join(map(str.capitalize, columns))} |", "|---|" + "---:|" * 7, *rows])


@contextmanager
def slow_down(lab: Lab, case: MachineCase) -> Iterator[set[str]]:
    """Make hosts and links slow within the block, and yield what a qualification must name."""
    one, other = Random(str(case)).sample(lab.names, 2)
    rate = (1 - case.loss) * USUAL_BIT_PER_S
    with ExitStack() as stack:
        slow = {QUOTA: [one], TWO_QUOTAS: [one, other], BOTH: [one], DISK: [one]}.get(case.kind, [])
        groups: dict[str, Path] = {}
        for machine in lab.machines if case.kind in QUOTA_KINDS else []:
            cores = CORES_SHARE * len(os.sched_getaffinity(0)) / case.hosts
            quota = cores * (1 - case.loss if machine.name in slow else 1)
            groups[machine.name] = stack.enter_context(limit_cpu(machine, quota))
        for machine in lab.machines if case.kind == DISK else []:
            per_s = DISK_BYTES_PER_S * (1 - case.loss if machine.name in slow else 1)
            stack.enter_context(limit_disk(machine, machine.home, per_s))
        if case.kind == NEIGHBOUR:
            stack.enter_context(run_neighbour(groups[one]))
            slow = [one]
        if case.kind == BETWEEN:
            lab[one].shape_towards(lab[other].address, rate, USUAL)
        for name in {INTO: [one], OUT_OF: [one], INTO_TWO: [one, other], BOTH: [other]}.get(case.kind, []):
            lab[name].shape(rate, inwards=case.kind != OUT_OF, outwards=case.kind == OUT_OF)
        yield {
            INTO: {f"{one}: link in"},
            OUT_OF: {f"{one}: link out"},
            BETWEEN: {f"{one}>{other}"},
            INTO_TWO: {f"{one}: link in", f"{other}: link in"},
            BOTH: {one, other},
        }.get(case.kind, set(slow))


@contextmanager
def run_neighbour(group: Path) -> Iterator[None]:
    """Run another process in a machine's control group, which copies in memory within the machine's quota."""
    with subprocess.Popen([sys.executable, "-c", _COPY]) as process:
        try:
            (group / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            process.kill()


def give_files(lab: Lab, folder: Path) -> Sequence[str]:
    """Make images, of which each machine has a copy of its own in this folder, and return the training that reads them."""
    size = f"--size={IMAGE_EDGE}x{IMAGE_EDGE}"
    run_dtfperf("make-data", "imagenet", f"--images={IMAGES}", "--shards=4", size, f"--out={folder}")
    for machine in lab.machines:
        _copy_files(machine, folder)
    return "trivial", "data=imagenet", f"data_dir={folder}"


def _copy_files(machine: Machine, folder: Path) -> None:
    """Replace a folder by a copy on one machine: of the same files, one machine would have what another has read."""
    copy = machine.home / folder.name
    shutil.copytree(folder, copy)
    machine.run("mount", "--bind", str(copy), str(folder))


def run_dtfperf(*arguments: str, cwd: Path | None = None) -> str:
    """Return the output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest_dtfperf.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=ENDS_S,
        check=False,
    )
    assert done.stdout, f"exit code {done.returncode}"
    return done.stdout


def qualify(lab: Lab, folder: Path, *training: str) -> Mapping[str, Any]:
    """Return the result of a qualification of all machines."""
    (folder / "clusters.toml").write_text(lab.toml("connect_s = 300"))
    command = ["qualify", *training, "--cluster=lab", "--no-training", "--history=never", "--json"]
    found: Mapping[str, Any] = json.loads(run_dtfperf(*command, f"--max-rounds={MOST_ROUNDS}", cwd=folder))
    return found


def list_named(found: Mapping[str, Any], case: MachineCase) -> set[str]:
    """Return the slow hosts, or the slow links of a case in which only links are slow, and the slow pairs."""
    slow = {
        (host, name)
        for host, result in found["hosts"].items()
        for name, each in result["capacities"].items()
        if each["verdict"] == "SLOW"
    }
    pairs = {">".join(pair["hosts"]) for pair in found["pairs"] if pair["verdict"] == "SLOW"}
    if case.kind in LINK_KINDS:
        return pairs | {f"{host}: {name}" if name.startswith("link") else host for host, name in slow}
    return pairs | {host for host, _ in slow}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="no case begins later; by default 30")
    parser.add_argument("--output", type=Path, required=True, help="a file to which a line for each case is appended")
    parser.add_argument("--kinds", help="only these kinds, separated by semicolons")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the order of cases")
    args = parser.parse_args()
    cases = [each for each in list_cases() if not args.kinds or each.kind in args.kinds.split(";")]
    ends_s = time.monotonic() + 60 * args.minutes
    lines = read_results(args.output)
    done = {MachineCase(each["kind"], each["hosts"], each["loss"], each["draw"]) for each in lines}
    for case in order_cases(cases, args.seed):
        if case in done:
            continue
        if time.monotonic() > ends_s:
            break
        began_s = time.monotonic()
        line: dict[str, Any] = asdict(case)
        if reason := why_no_case(case):
            line |= {"skipped": reason}
        else:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = run_case(case, Path(folder))
                line |= {"expected": sorted(found.expected), "named": sorted(found.named), "right": found.is_right}
                line |= {"false_fit": found.is_false_fit, "reasons": found.reasons}
            except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                line |= {"error": f"{type(error).__name__}: {error}"}
        lines.append(line)
        line["seconds"] = round(time.monotonic() - began_s, 1)
        with args.output.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
        print(json.dumps(line), flush=True)
    print(summarise(lines))
    return 0 if all(each.get("right") for each in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
