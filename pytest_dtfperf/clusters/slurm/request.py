"""The arguments of sbatch and srun, and the comment of a job. Pure: nothing is run here.

sbatch   a job that holds the nodes; its script comes on stdin                         `make_submit_command`
srun     in that job, a step that shows that pytest is alive                           `make_keepalive_step`
srun     in that job, one agent on every node, inside a shell that prepares its node   `make_agents_command` of a `make_wrapper`
srun     in that job, a short command on every node                                    `make_sweep_command`
"""

import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

from pytest_dtfperf.clusters.capacity import require_hosts
from pytest_dtfperf.clusters.file import HostListError
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.slurm import keys as keys
from pytest_dtfperf.clusters.slurm import parse
from pytest_dtfperf.clusters.slurm.parse import SlurmNode
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.node.owner import Owner

NAME_PREFIX = "dtfperf-"  # of the names of all jobs
AGENTS = "agents"  # the name of the step that is the channel
STARTED, ENDED = b"dtfperf-node started", b"dtfperf-node ended "  # the shell's lines in the stream; an exit code follows

_APART = "8<&0 9>&1 </dev/null >&2"  # the commands before the agent cannot use its stdin and stdout
# Some shells run any file of that name.
_IS_PROGRAM = 'command -v -- "$1" >/dev/null && case $1 in */*) [ -x "$1" ] ;; esac'
# A login shell reads the definition of `module` on most sites, and prints greetings on some.
_LOGIN = f'lines=$1; shift; exec bash -lc "$lines" dtfperf-agent "$@" {_APART}'


def count_nodes(config: ClusterConfig, resources: Resources) -> int:
    """Return the number of nodes of the job. Raises `AllocationError` if it is above the cluster's limit."""
    return require_hosts(config, resources, "nodes")


def get_max_pending_s(config: ClusterConfig) -> float | None:
    """Return how many seconds a job may wait for its nodes; None: without limit."""
    given = config.backend_keys.get("max_pending")
    return None if given is None else keys.parse_seconds(given)


def make_submit_command(
    config: ClusterConfig, *, nodes: int, name: str, comment: str, unavailable: Collection[str] = ()
) -> list[str]:
    """Return the command that submits the job; it prints the job's id.

    Args:
        unavailable: nodes that get no jobs now: they are left out of `include_nodes`.
    """
    backend_keys = config.backend_keys
    argv = ["sbatch", "--parsable", "--no-requeue", f"--job-name={name}", f"--comment={comment}", "--chdir=/"]
    argv += [
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--time={backend_keys.get('time_limit', keys.DEFAULT_TIME_LIMIT)}",
    ]
    for key in ("partition", "account", "qos", "constraint", "reservation", "switches", "licenses"):
        if key in backend_keys:
            argv.append(f"--{key}={backend_keys[key]}")
    if gres := _get_gres(config):
        argv.append(f"--gres={gres}")
    if "include_nodes" in backend_keys and (included := _list_included(backend_keys, nodes, unavailable)):
        argv.append(f"--nodelist={','.join(included)}")
    if "exclude_nodes" in backend_keys:
        argv.append(f"--exclude={backend_keys['exclude_nodes']}")
    exclusive = backend_keys.get("exclusive", True)
    if exclusive:
        argv.append("--exclusive")
    if memory := backend_keys.get("memory", "0" if exclusive else None):  # 0: all memory of the node
        argv.append(f"--mem={memory}")
    output = (
        os.path.abspath(os.path.join(os.path.expanduser(backend_keys["shared"]), "slurm-%x-%j.out"))
        if "shared" in backend_keys
        else "/dev/null"
    )
    return [*argv, *_make_cpu_options(config), f"--output={output}", f"--error={output}", *backend_keys.get("options", ())]


def make_agents_command(
    config: ClusterConfig, *, job: str, nodes: Sequence[str], argv: Sequence[str], name: str = AGENTS
) -> list[str]:
    """Return the command that runs `argv`, wrapped, once on each of these nodes of the job, with all their resources.

    It starts beside hanging agents, except with GPUs on Slurm 20.11, where such a step waits for the end of an earlier one.
    """
    return _make_agents_command(config, job, len(nodes), [f"--nodelist={','.join(nodes)}"], argv, name)


def make_keepalive_step(config: ClusterConfig, *, job: str, node: str, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` on one node of the job, beside other steps and without resources of its own."""
    return [*_make_step(job, "keepalive", 1, [f"--nodelist={node}"]), "--gres=none", "--chdir=/", *argv]


def make_drain_command(node: str, reason: str) -> list[str]:
    """Return the command that gives a node no more jobs. Slurm shows one line as the reason."""
    return ["scontrol", "update", f"nodename={node}", "state=drain", f"reason=dtfperf: {' '.join(reason.split())}"]


def make_sweep_command(config: ClusterConfig, *, job: str, nodes: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Return the command that runs a short command on each of these nodes of the job."""
    return [*_make_step(job, "sweep", len(nodes), [f"--nodelist={','.join(nodes)}"]), "--gres=none", "--input=none", *argv]


def make_wrapper(config: ClusterConfig, argv: Sequence[str]) -> list[str]:
    """Return a shell command that runs the set-up lines of clusters.toml, then `argv`, and prints its exit code.

    It prints STARTED on stdout after the set-up if the program exists, and at its end ENDED and the exit code (128 plus the
    signal's number for a killed program). The output of set-up lines goes to stderr, and they have no stdin.
    """
    setup = config.backend_keys.get("setup", ())
    lines = [
        f'trap \'printf "{ENDED.decode()}%d\\n" "$?" >&9\' EXIT',
        # A shell with only the first trap would report 0 when it is killed while it waits for its program.
        *(f"trap 'exit {128 + each}' {each.name[3:]}" for each in (SIGHUP, SIGINT, SIGTERM)),
        "export DTFPERF_HOST_INDEX=$SLURM_PROCID",
        *(_format_setup_line(number, line) for number, line in enumerate(setup, start=1)),
        *_format_folders(config),
        f'{_IS_PROGRAM} && echo "{STARTED.decode()}" >&9',
        '"$@" <&8 >&9 8<&- 9>&-',
    ]
    if setup:
        return ["sh", "-c", _LOGIN, "dtfperf-agent", "\n".join(lines), *argv]
    return ["sh", "-c", "\n".join([f"exec {_APART}", *lines]), "dtfperf-agent", *argv]


def list_commands(config: ClusterConfig, resources: Resources) -> list[str]:
    """Return the commands for these resources, for display. Inside a job there is nothing to submit."""
    nodes = count_nodes(config, resources)
    program = make_wrapper(config, make_module_command(config.python or "python3", "pytest_dtfperf.node.agent"))
    step = _format_command(_make_agents_command(config, "JOB", nodes, [], program))
    if "SLURM_JOB_ID" in os.environ:
        return [f"JOB={os.environ['SLURM_JOB_ID']}", step]
    submit = make_submit_command(
        config, nodes=nodes, name=f"{NAME_PREFIX}{resources.session}", comment=f"dtfperf session={resources.session}"
    )
    keep = _format_command([*_make_step("JOB", "keepalive", 1, []), "--gres=none", "--chdir=/"])
    return [f"JOB=$({shlex.join(submit)} <<< 'a script that holds the nodes')", f"{keep} 'what keeps them'", step]


def _make_agents_command(
    config: ClusterConfig, job: str, count: int, where: Sequence[str], argv: Sequence[str], name: str = AGENTS
) -> list[str]:
    options = [
        "--label",
        "--kill-on-bad-exit=0",
        "--wait=0",
        f"--gres={_get_gres(config) or 'none'}",
        *_make_cpu_options(config),
    ]
    return [*_make_step(job, name, count, where), *options, *argv]


def _make_step(job: str, name: str, count: int, where: Sequence[str]) -> list[str]:
    """Return the options for one task on each of `count` nodes, beside other steps, with the same memory and cores as they."""
    argv = ["srun", f"--jobid={job}", f"--job-name={name}", "--overlap", f"--nodes={count}", f"--ntasks={count}"]
    return [*argv, "--ntasks-per-node=1", *where, "--mem=0", "--mpi=none", "--cpu-bind=none", "--export=ALL"]


_MOST_KINDS = 4  # of nodes in a partition, whose features tell kinds apart


def select_partition(config: ClusterConfig, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
    """Return the nodes that jobs of the cluster may get, by `partition`, `include_nodes` and `exclude_nodes`."""
    backend_keys = config.backend_keys
    partitions = backend_keys.get("partition", "").split(",")
    excluded = parse.expand_hostlist(backend_keys.get("exclude_nodes", ""))
    found = {
        node.name: node
        for node in nodes
        if (node.partition in partitions if partitions != [""] else node.is_default) and node.name not in excluded
    }
    return list(found.values())


def list_unavailable(config: ClusterConfig, nodes: Sequence[SlurmNode]) -> list[SlurmNode]:
    """Return the nodes of `select_partition` that get no job of the cluster now."""
    in_reservation = "reservation" in config.backend_keys
    return [node for node in nodes if not node.is_available and not (in_reservation and node.state in ("reserved", "maint"))]


def describe_kinds(config: ClusterConfig, nodes: Sequence[SlurmNode], allocated: Sequence[str]) -> str | None:
    """Return which kinds of nodes there are and which kind a job has got; None where there is nothing to choose."""
    all_kinds = _group_kinds(nodes)
    got = {kind: here for kind, names in all_kinds.items() if (here := [name for name in names if name in allocated])}
    if len(got) > 1:
        described = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in got.items())
        return f"the nodes of this job are of {len(got)} kinds, and the slowest sets the pace: {described}. Set constraint"
    if len(all_kinds) < 2 or not got or "constraint" in config.backend_keys:
        return None
    others = "; ".join(f"{len(names)} with {kind}" for kind, names in all_kinds.items() if kind not in got)
    return (
        f"the partition has nodes of {len(all_kinds)} kinds, and this job has got {next(iter(got))} (others: {others}). "
        "Set constraint to get the same kind each time"
    )


def _group_kinds(nodes: Sequence[SlurmNode]) -> dict[str, list[str]]:
    """Return the names of nodes by kind. Features count only if few differ: on many sites they name each rack, too."""
    with_features = len({node.kind for node in nodes}) <= _MOST_KINDS
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.kind if with_features else node.hardware, []).append(node.name)
    return found


_OF_OTHER_NODES = ("exclude_nodes", "nodes_per_gpu_count")  # keys


def select_nodes(config: ClusterConfig, names: str) -> ClusterConfig:
    """Return the cluster with only these nodes, in Slurm's form: "node03,node07", "node[03-07]". Raises `UsageError`."""
    try:
        nodes = keys.list_nodes(names)
    except HostListError as error:
        raise UsageError(f"{names!r} is no list of nodes as Slurm has it, node03,node07 or node[03-07]: {error}") from error
    others = {key: value for key, value in config.backend_keys.items() if key not in _OF_OTHER_NODES}
    return replace(config, backend_keys={**others, "nodes": len(nodes), "include_nodes": names})


def _list_included(backend_keys: Mapping[str, Any], nodes: int, unavailable: Collection[str]) -> list[str]:
    """Return the first of the selected nodes: Slurm refuses a longer list or excluded nodes, and waits for unavailable ones."""
    excluded = {*parse.expand_hostlist(backend_keys.get("exclude_nodes", "")), *unavailable}
    return [node for node in parse.expand_hostlist(backend_keys["include_nodes"]) if node not in excluded][:nodes]


def _get_gres(config: ClusterConfig) -> str | None:
    """Return the generic resources in a form that every version of Slurm accepts."""
    count = config.backend_keys.get("gpus_per_node")
    given: str | None = config.backend_keys.get("gres")
    return f"gpu:{count}" if count else given


def _make_cpu_options(config: ClusterConfig) -> list[str]:
    """Return the CPU options for sbatch and srun: since 22.05, srun does not inherit them from the job."""
    count = config.backend_keys.get("cpus_per_node")
    return [f"--cpus-per-task={count}"] if count else []


def _format_setup_line(number: int, line: str) -> str:
    """Return code that runs a line in this shell, so that its settings stay."""
    quoted_line = shlex.quote(f": {line}")
    return f'eval {shlex.quote(line)} || {{ echo "setup line {number} failed with exit code $?"{quoted_line} >&2; exit 1; }}'


def _format_folders(config: ClusterConfig) -> list[str]:
    """Return the lines that make the folders of clusters.toml, and export the variables that name them."""
    named = {name: _quote_with_variables(folder) for name, folder in config.folders.items()}
    if "spool" in config.backend_keys:
        named["TMPDIR"] = shlex.quote(config.backend_keys["spool"])
    return [f"mkdir -p -- {folder} && export {name}={folder} || exit 1" for name, folder in named.items()]


def _quote_with_variables(folder: str) -> str:
    """Return a folder as a shell reads it, which ends where a variable is not set."""
    path = f"${{HOME}}{folder[1:]}" if folder.startswith("~") else folder
    return '"' + re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: f"${{{match[1] or match[2]}:?}}", path) + '"'


def _format_command(argv: Sequence[str]) -> str:
    return shlex.join(argv).replace("--jobid=JOB", '--jobid="$JOB"')


_JOB_COMMENT = re.compile(r"dtfperf session=(\S+) owner=(\S+)")


def format_job_comment(session: str, owner: Owner) -> str:
    return f"dtfperf session={session} owner={owner.text}"


def parse_job_comment(comment: str) -> tuple[str, Owner] | None:
    """Parse a job comment into (session, owner); None if it is not from this package."""
    found = _JOB_COMMENT.fullmatch(comment.strip())
    owner = Owner.parse(found[2]) if found else None
    return (found[1], owner) if found and owner else None
