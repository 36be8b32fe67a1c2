"""The environment variables that hosts get: names that training reads, and those of the cluster file. Pure.

The whole environment would give every process there this user's secrets (AWS_SECRET_ACCESS_KEY, tokens of all kinds), and a
batch system would keep them in its records. A name does not show whether its value is secret, so names are allowed one by
one.
"""

import re
from collections.abc import Iterable, Mapping

from pytest_dtfperf.clusters.file import Validator
from pytest_dtfperf.node.container import SECRETS

# Variables that training and its libraries read, on every host.
TRAINING = ("DTFPERF_*", "TF_*", "NCCL_*", "XLA_*", "GRPC_*", "OMP_*", "KMP_*")
# Variables for hosts that share this machine's file systems and the user's set-up, such as nodes of a batch system: the
# user, the paths of programs and modules, and the locale.
SHARED = (
    "HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLUMNS", "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT",
    "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
    "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER",
    # Environment modules and Lmod: modules that are loaded here are loaded there.
    "MODULEPATH", "MODULEPATH_*", "MODULESHOME", "MODULES_*", "LOADEDMODULES", "_LMFILES_", "_LMFILES_*", "LMOD_*", "__LMOD_*",
    "_ModuleTable*", "BASH_ENV", "BASH_FUNC_module%%", "BASH_FUNC_ml%%", "BASH_FUNC_module()", "BASH_FUNC_ml()", "EBROOT*",
    # Network and numerical libraries
    "UCX_*", "FI_*", "IBV_*", "MPICH_*", "OMPI_MCA_*", "HOROVOD_*", "MKL_*", "OPENBLAS_*", "CRAY_CUDA_*",
)  # fmt: skip

# Variables that give a process its role in another run: of the job, or of the launcher, that has started this process.
# Settings of the same libraries, and Slurm's own configuration, are no part of it.
ROLES = re.compile(
    r"TF_CONFIG|RANK|WORLD_SIZE|(?:LOCAL|GROUP|ROLE|NODE|CROSS)_(?:RANK|WORLD_SIZE|SIZE)|ROLE_NAME|MASTER_(?:ADDR|PORT)"
    r"|TORCHELASTIC_.*|PET_.*"  # PyTorch's launcher
    r"|SLURM_(?!(?:CONF|JWT|CLUSTERS|TMPDIR)$).*|SLURMD_.*"
    r"|OMPI_(?!MCA_).*|OMPI_MCA_(?:orte|ess|pmix|plm)_?.*|PMI2?_.*|PMIX_(?!MCA_).*|PRTE_(?!MCA_).*"  # MPI
    r"|MPI_LOCAL(?:RANKID|NRANKS)|MV2_COMM_.*|HYDI_.*|PALS_.*|ALPS_APP_.*"
    r"|HOROVOD_(?:(?:LOCAL_|CROSS_)?(?:RANK|SIZE)|HOSTNAME|CONTROLLER|ELASTIC|GLOO_RENDEZVOUS_(?:ADDR|PORT))"
    r"|JAX_(?:COORDINATOR_ADDRESS|COORDINATOR_PORT|PROCESS_ID|PROCESS_COUNT|NUM_PROCESSES)|DMLC_.*"
    r"|FLUX_(?:TASK|JOB)_.*|JSM_NAMESPACE_.*|PBS_(?:NODENUM|TASKNUM|VNODENUM)|JOB_COMPLETION_INDEX"
)

_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\*|=[^\0]*)?")

ENVIRONMENT = Validator(
    'a list of variables: "NAME", "BEGINNING_*" (handed on as they are here) or "NAME=value"',
    lambda value: isinstance(value, list) and all(isinstance(each, str) and _ENTRY.fullmatch(each) for each in value),
)


def select_variables(environment: Mapping[str, str], *names: Iterable[str]) -> dict[str, str]:
    """Return the variables of these names, `BEGINNING_*` included, and those that are given with a value.

    A variable with a role in a run (`ROLES`) or with secrets of the controller must be named in full: no pattern matches it.
    """
    wanted = [each.partition("=") for some in names for each in some]
    whole = {name for name, assigned, _ in wanted if not assigned}
    beginnings = tuple(name[:-1] for name in whole if name.endswith("*"))
    found = {
        name: value
        for name, value in environment.items()
        if name in whole or (name.startswith(beginnings) and name not in SECRETS and not ROLES.fullmatch(name))
    }
    return {**found, **{name: value for name, assigned, value in wanted if assigned}}
