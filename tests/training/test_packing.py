"""Packs of small variables: their content, and that training with them equals training without."""

from pathlib import Path

import pytest

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.exchange_plan import PACK_BYTES, SMALL_BYTES, plan_packs
from pytest_dtfperf.training.models import make_default_network
from pytest_dtfperf.training.models.outline import compute_outline
from tests.training.conftest import RunTraining, assert_same_variables


def test_packs_have_small_variables_of_one_kind() -> None:
    """All variables of InceptionV3 up to 64 KiB are packed once, batch norm's separately, in packs of at most 1 MiB."""
    variables = compute_outline(make_default_network("inception3")).trained
    packs = plan_packs(variables)
    members = [member for pack in packs for member in pack.members]
    assert sorted(members) == sorted(variable for variable in variables if 4 * variable.size <= SMALL_BYTES)
    assert all(4 * pack.size <= PACK_BYTES for pack in packs)
    for pack in packs:
        assert {member.name.startswith("batch_norm") for member in pack.members} == {pack.name.startswith("batch_norm")}


def test_packs_are_no_larger_than_a_servers_part() -> None:
    """No pack for four parameter servers has more than a quarter of the packed bytes."""
    variables = compute_outline(make_default_network("inception3")).trained
    whole = sum(pack.size for pack in plan_packs(variables))
    assert max(pack.size for pack in plan_packs(variables, servers=4)) <= whole / 4 + 1


def test_limits_of_packs() -> None:
    """A limit of members makes more packs, a limit of bytes leaves more variables alone, and zero packs none."""
    variables = compute_outline(make_default_network("inception3")).trained
    assert max(len(pack.members) for pack in plan_packs(variables, most=10)) == 10
    assert all(4 * member.size <= 1024 for pack in plan_packs(variables, small_bytes=1024) for member in pack.members)
    assert plan_packs(variables, small_bytes=0) == []


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_packs_train_the_same(run_training: RunTraining, tiny: Spec, tmp_path: Path, optimizer: str) -> None:
    """Two workers with packs of all sizes learn the same as one without any, weight decay and an optimizer's state included."""
    alone = tiny.replace(batch_size=16, optimizer=optimizer, weight_decay=0.01, learning_rate=0.01)
    run_training(alone, checkpoint=str(tmp_path / "none.npz"))
    spec = alone.replace(batch_size=8, gpus=2, num_ps=2)
    for name, options in {"all": {}, "pairs": {"agg_small_grads_max_group": 2}}.items():
        run_training(spec.replace(**options), workers=2, checkpoint=str(tmp_path / f"{name}.npz"))
    assert_same_variables(tmp_path / "all.npz", tmp_path / "none.npz")
    assert_same_variables(tmp_path / "pairs.npz", tmp_path / "none.npz")
