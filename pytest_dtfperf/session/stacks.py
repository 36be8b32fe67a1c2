"""Build several software stacks, start their agents on the same hosts, and make blocks of runs in turn."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.capacity import count_server_hosts
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.compare.blocks import Block
from pytest_dtfperf.compare.record import make_log_name
from pytest_dtfperf.compare.variants import Setting, Variant
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.host_state import Disturbance
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.errors import (
    AllocationError,
    AllocationOver,
    BuildFailed,
    ClusterFileError,
    InfrastructureError,
    InvalidMeasurement,
    RunFailed,
    UsageError,
)
from pytest_dtfperf.session.allocation_manager import ClusterInfo
from pytest_dtfperf.session.builds import BuildCache, Recipe, find_commit, find_repository
from pytest_dtfperf.session.context import SessionContext
from pytest_dtfperf.session.post_analysis import shorten
from pytest_dtfperf.spec import Spec

FEWEST = 2  # variants of a comparison
OTHER_HOSTS = Disturbance(message="its runs were on different hosts")


@dataclass(frozen=True)
class ResolvedStack:
    """A variant on a cluster. Two variants are equal if these are.

    Attributes:
        config: the cluster with the variant's stack.
        recipe: its source, with the hash of its commit; None: nothing is built.
        fields: the fields of each training that it sets.
    """

    config: ClusterConfig
    recipe: Recipe | None
    fields: Mapping[str, Setting]

    @classmethod
    def from_variant(cls, variant: Variant, config: ClusterConfig) -> Self:
        """Return a variant on this cluster. Raises `UsageError` if there is no such commit or key."""
        found = variant.apply_to_cluster(config)
        return cls(found, make_recipe(variant, found), dict(sorted(variant.fields.items())))


@dataclass
class ComparedStack:
    """One stack of a comparison, with its training."""

    variant: Variant
    spec: Spec
    fingerprint: Fingerprint = field(default_factory=Fingerprint)  # of the last run's hosts and software
    traced: Run | None = None
    runs_made: int = 0  # disturbed ones included
    server_hosts: int = 0  # so many first hosts have no workers, with any of the stacks

    def measurement(self, runs: Sequence[Run]) -> Measurement:
        return Measurement(
            spec=self.spec, runs=tuple(runs), hosts=tuple(runs[-1].hosts), fingerprint=self.fingerprint, traced=self.traced
        )


class StackRunner:
    """Builds and runs the stacks of one session.

    Attributes:
        cache: the stacks that were built.
        stacks: the variants on the session's cluster, by their names; a built one has its own interpreter.
        current: the name of the stack that was last built, started or run, which an error belongs to.
    """

    def __init__(self, session: SessionContext, label: str, variants: Sequence[Variant]) -> None:
        """Check the stacks as far as that is possible before they are built.

        Args:
            label: begins the names of the folders of logs.
            variants: each with a name of its own.

        Raises:
            UsageError: the cluster cannot have one, or there is no such commit, interpreter or container.
        """
        self.cache = BuildCache()
        self.stacks = {each.name: ResolvedStack.from_variant(each, session.config) for each in variants}
        self.current = ""
        self._session = session
        self._label = label
        for name, stack in self.stacks.items():
            if not stack.recipe:
                self._check(name, stack.config)

    def prepare(self, variant: Variant, spec: Spec) -> Spec:
        """Return the training of a variant, after a check. Raises `UsageError`."""
        found = variant.apply_to_spec(spec)
        if variant.source.git:
            if found.own_model and not found.command:
                raise UsageError(
                    f"variant {variant.name}: the model {found.model} is copied from this folder, so that it would be the same "
                    "in each commit. Train a program of the repository: --command"
                )
            return found  # its folder is made by the build
        self._session.plan(found)
        return found

    def is_built(self, name: str) -> bool:
        recipe = self.stacks[name].recipe
        return recipe is None or self.cache.find(recipe) is not None

    def is_warm(self, name: str) -> bool:
        """Return whether a stack has agents."""
        return self._session.allocations.has_agents(name)

    def build(self, side: ComparedStack) -> None:
        """Build a stack, if it is built here, and let its runs use it. Raises `BuildFailed`, `UsageError`."""
        name = self.current = side.variant.name
        stack = self.stacks[name]
        config = stack.config
        if recipe := stack.recipe:
            if not self.cache.find(recipe):
                self._session.progress.waiting(f"building {name} ({recipe})")
            try:
                built = self.cache.build(recipe)
            except BuildFailed as error:
                raise BuildFailed(f"variant {name}: {error}") from error
            if built.python:
                config = replace(config, python=built.python)
                self.stacks[name] = replace(stack, config=config)
            if built.tree and side.spec.command:
                side.spec = side.spec.replace(command_dir=str(built.tree))
            self._check(name, config)
            self._session.plan(side.spec)
        self._session.allocations.stacks[name] = config

    def start_agents(self, name: str, spec: Spec) -> None:
        """Start a stack's agents, if there are none. Raises `AllocationError`."""
        self.current = name
        try:
            self._session.allocations.get_launcher(spec, name)
        except AllocationOver:
            raise
        except AllocationError as error:
            raise AllocationError(f"variant {name}: {error}") from error

    def end_agents(self, name: str) -> None:
        """End a stack's agents, if there are any; a later run starts others."""
        self._session.allocations.end_agents(name)

    def make_block(self, order: str, reference: ComparedStack, variant: ComparedStack, *, runs: int) -> Block:
        """Make four runs in this order; a disturbed one is made again once. Raises the errors of a run, with the variant."""
        found = [self._run_undisturbed(reference if letter == "A" else variant, runs) for letter in order]
        tasks = set.intersection(*(set(run.task_hosts) for run in found))  # variants may have more, such as parameter servers
        if len({tuple(run.task_hosts[task] for task in sorted(tasks)) for run in found}) > 1:
            found = [replace(run, disturbances=[*run.disturbances, OTHER_HOSTS]) for run in found]
        return Block(order, found)

    def run(self, side: ComparedStack, runs: int, *, traced: bool = False) -> Run:
        """Make a run.

        Args:
            runs: how many the stack will probably have, to show.
            traced: make it short, and trace some steps.

        Raises:
            RunFailed, InvalidMeasurement, InfrastructureError: with the variant's name.
        """
        name = self.current = side.variant.name
        side.runs_made += 1
        try:
            hosts = self._session.allocations.get_launcher(side.spec, name).hosts
            run = self._session.run(
                shorten(side.spec) if traced else side.spec,
                make_log_name(self._label, side.spec, name),
                number=side.runs_made,
                total=max(side.runs_made, runs),
                explain=traced,
                without=hosts[count_server_hosts(self._session.config, side.spec.num_ps) : side.server_hosts],  # for others'
                stack=name,
            )
        except RunFailed as error:
            raise type(error)(replace(error.culprit, description=f"{error.culprit.description} with variant {name}")) from error
        except (InvalidMeasurement, InfrastructureError) as error:
            raise type(error)(f"variant {name}: {error}") from error
        get_launcher = partial(self._session.allocations.get_launcher, stack=name)
        side.fingerprint = ClusterInfo(self.stacks[name].config, get_launcher).collect_fingerprint(run)
        return run

    def _run_undisturbed(self, side: ComparedStack, runs: int) -> Run:
        """Make a run, and another one instead if something disturbed it."""
        run = self.run(side, runs)
        return self.run(side, runs) if run.disturbances else run

    def _check(self, name: str, config: ClusterConfig) -> None:
        try:
            named.BACKENDS[config.backend].check_stack(config)
        except ClusterFileError as error:
            raise UsageError(f"variant {name}: {error}") from error


def align_workers(sides: Sequence[ComparedStack], config: ClusterConfig) -> None:
    """Let the workers of all stacks be on the same hosts, if parameter servers are on separate ones."""
    most = max(count_server_hosts(config, each.spec.num_ps) for each in sides)
    for each in sides:
        each.server_hosts = most


def check_variants(variants: Sequence[Variant], config: ClusterConfig) -> None:
    """Raise `UsageError` unless these are two or more different stacks on this cluster. Nothing is started."""
    if len(variants) < FEWEST:
        given = f"only {variants[0].name}" if variants else "none"
        raise UsageError(
            f'a comparison needs two variants, and there is {given}: "old: python=..." "new: python=...". '
            "--same compares one with itself"
        )
    names = [each.name for each in variants]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"variant {twice} is defined twice: give each a name of its own")
    if equal := find_equal({each.name: ResolvedStack.from_variant(each, config) for each in variants}):
        raise UsageError(f"variants {' and '.join(equal)} are equal: --same compares a variant with itself")


def find_equal(stacks: Mapping[str, ResolvedStack]) -> tuple[str, str] | None:
    """Return the names of the first two equal stacks, or None. Two refs of one commit are equal."""
    names: dict[str, str] = {}
    pairs = ((names.setdefault(repr(stack), name), name) for name, stack in stacks.items())
    return next((pair for pair in pairs if pair[0] != pair[1]), None)


def make_recipe(variant: Variant, config: ClusterConfig) -> Recipe | None:
    """Return the recipe of a variant, with the commit's hash; None: nothing is built. Raises `UsageError`."""
    source = variant.source
    if not (source.git or source.packages):
        return None
    lines = (source.setup,) if isinstance(source.setup, str) else tuple(source.setup)
    repo, folder, commit = "", "", ""
    if source.git:
        given = Path(source.repo or ".").expanduser().absolute()
        try:
            commit = find_commit(given, source.git)
            repo, folder = find_repository(given)
        except (BuildFailed, UsageError) as error:
            raise UsageError(f"variant {variant.name}: {error}") from error
    return Recipe(
        repo=repo,
        folder=folder,
        commit=commit,
        setup=lines,
        packages=tuple(source.packages),
        python=config.python or sys.executable,
    )
