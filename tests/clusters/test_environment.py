"""The environment of hosts, made from the names of variables in clusters.toml."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.environment import SHARED, TRAINING, select_variables
from pytest_dtfperf.clusters.slurm.client import make_environment
from pytest_dtfperf.errors import ClusterFileError

HERE = {"A": "1", "A_B": "2", "B": "3", "C": "x=y"}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], {}),
        (["A"], {"A": "1"}),
        (["A*"], {"A": "1", "A_B": "2"}),
        (["C", "D"], {"C": "x=y"}),
        (["A=7", "D=a=b*"], {"A": "7", "D": "a=b*"}),
        (["A", "A="], {"A": ""}),
    ],
    ids=["none", "a name", "a beginning", "one that is not set", "values", "a name and its value"],
)
def test_names(names: Sequence[str], found: Mapping[str, str]) -> None:
    """A name passes on a set variable, a prefix with * all that match, and NAME=value sets it."""
    assert select_variables(HERE, names) == found


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "SSH_AUTH_SOCK",
        "PGPASSWORD",
        "WANDB_API_KEY",
        "PATHOLOGY",
        "DTFPERF_HISTORY",
        "DTFPERF_METRICS",
        "DTFPERF_NOTIFY",
    ],
)
def test_usual_names_of_secrets_are_not_passed_on(name: str) -> None:
    """Variables with the usual names of secrets are not passed on by default, to any backend."""
    assert select_variables({name: "secret"}, SHARED, TRAINING) == {}


CALLERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_RANK", "TF_CONFIG",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_RANK", "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_orte_hnp_uri", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_SIZE", "HOROVOD_RANK",
    "HOROVOD_LOCAL_SIZE", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "JAX_PROCESS_ID", "DMLC_ROLE",
)  # fmt: skip
SETTINGS = (
    "TF_CPP_MIN_LOG_LEVEL", "HOROVOD_FUSION_THRESHOLD", "OMPI_MCA_btl", "NCCL_DEBUG", "DTFPERF_LOCKS", "OMP_NUM_THREADS",
)  # fmt: skip


@pytest.mark.parametrize("names", [["*"], [*TRAINING, *SHARED]], ids=["all", "by name"])
def test_task_role_of_the_caller_is_not_passed_on(names: Sequence[str]) -> None:
    """A task does not inherit its role in another run, unless the cluster file names the variable in full."""
    here = dict.fromkeys([*CALLERS, *SETTINGS], "1")
    assert set(select_variables(here, names)) == set(SETTINGS)
    assert set(select_variables(here, names, ["RANK", "PMI_*", "WORLD_SIZE=2"])) == {*SETTINGS, "RANK", "WORLD_SIZE"}


def test_job_has_paths_and_modules() -> None:
    """A job has its user's paths and modules and Slurm's configuration, but no default options of Slurm's commands."""
    needed = {
        "PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/lib", "LOADEDMODULES": "cuda/12", "LMOD_DIR": "/lmod",
        "BASH_FUNC_module%%": "() { :; }", "TF_CPP_MIN_LOG_LEVEL": "2", "SLURM_CONF": "/etc/slurm.conf",
    }  # fmt: skip
    options = {"SLURM_PARTITION": "debug", "SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE", "SQUEUE_FORMAT": "%i"}
    found = make_environment({**needed, **options, "TOKEN": "secret", "KEPT": "asked for"}, ["KEPT", "SBATCH_*"])
    assert found == {**needed, "KEPT": "asked for", "SLURM_TIME_FORMAT": "%s"}


@pytest.mark.parametrize("given", ['"TOKEN"', "[7]", '["*"]', '["A B"]', '["=7"]', '["A\\u0000=1"]', '["A=\\u0000"]'])
def test_invalid_names_of_variables_are_refused(given: str, tmp_path: Path) -> None:
    """An entry that is no name of a variable, or a lone * that would pass on everything, is refused in one line."""
    file = tmp_path / "clusters.toml"
    file.write_text(f'[lab]\nbackend = "local"\nenvironment = {given}\n')
    with pytest.raises(ClusterFileError, match=r"\[lab\] environment must be a list of variables"):
        named.load(file)
