"""`dtfperf init`: its files work without a change, and existing files are kept."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pytest_dtfperf.cli import main
from pytest_dtfperf.cli.init import BACKENDS, NIGHTS, PERF_TESTS
from pytest_dtfperf.clusters import named
from pytest_dtfperf.node.probes import Gpu
from tests.docs import commands
from tests.plugin import zygote
from tests.plugin.conftest import WITHOUT

REPOSITORY = Path(__file__).parents[2]
OURS = [*(f"perf_tests/{name}" for name in PERF_TESTS), "perf_tests/clusters.toml", "pytest.ini", ".gitignore"]
EDITED = "# somebody's own\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, on a machine without GPUs and without Slurm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pytest_dtfperf.cli.init.probes.list_gpus", list)
    monkeypatch.setattr("pytest_dtfperf.cli.init.shutil.which", lambda _: None)
    return tmp_path


def read_files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def read_training_settings(folder: Path, model: str) -> dict[str, Any]:
    """Return the settings of this machine's table for training a model."""
    local = named.load(folder / "perf_tests" / "clusters.toml")["local"]
    return {**local.training, **local.models.get(model, {})}


def test_init_writes_the_perf_tests_of_this_repository(project: Path) -> None:
    """The perf tests are those of perf_tests/, byte for byte, with a cluster file that describes this machine."""
    assert main(["init"]) == 0
    found = read_files(project)
    assert sorted(found) == sorted(OURS)
    for name in PERF_TESTS:
        assert found[f"perf_tests/{name}"] == (REPOSITORY / "perf_tests" / name).read_text()
    for model in ("inception3", "mnist"):
        assert read_training_settings(project, model) == read_training_settings(REPOSITORY, model)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gpus", [0, 8])
def test_cluster_file_of_each_backend_is_valid(backend: str, gpus: int, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster file of each backend is valid, with a table for this machine and sizes for its devices."""
    found = [Gpu(str(index), "NVIDIA H200", 143771, "1") for index in range(gpus)]
    monkeypatch.setattr("pytest_dtfperf.cli.init.probes.list_gpus", lambda: found)
    hosts = ["--hosts=alice,bob"] if backend == "ssh" else []
    assert main(["init", f"--backend={backend}", *hosts]) == 0
    clusters = named.load(project / "perf_tests" / "clusters.toml")
    assert {name: each.backend for name, each in clusters.items()} == {"local": "local", BACKENDS[backend]: backend}
    assert read_training_settings(project, "inception3")["batch_size"] == (64 if gpus else 2)
    assert read_training_settings(project, "inception3")["steps"] == (100 if gpus else 3)


SINFO: dict[str, tuple[str, dict[str, Any], str]] = {
    "the default partition": (
        "echo 'debug|4|(null)'; echo 'normal*|128|gpu:a100:4(S:0-1)'",
        {"partition": "normal", "nodes": 128, "gpus_per_node": 4},
        "chosen of what sinfo shows: normal, 128 nodes of 4 GPUs (a100); there are also debug, 4 nodes without GPUs",
    ),
    "no GPU anywhere": (
        "echo 'all*|16|(null)'",
        {"partition": "all", "nodes": 16, "devices_per_host": 2},
        "chosen of what sinfo shows: all, 16 nodes without GPUs",
    ),
    "nodes without GPUs first": (
        "echo 'all*|40|(null)'; echo 'all*|8|gpu:4(S:0,2)'; echo 'all*|2|shard:16'",
        {"partition": "all", "nodes": 8, "gpus_per_node": 4},
        "all, 8 nodes of 4 GPUs; there are also all, 42 nodes without GPUs",
    ),
    "several counts and types": (
        "echo 'gpu*|2|gpu:v100:8'; echo 'gpu*|9|gpu:3090:4(S:0-1),shard:3090:40'; echo 'gpu*|1|gpu:3090:2'",
        {"partition": "gpu", "nodes": 9, "gres": "gpu:3090:4"},
        "gpu, 9 nodes of 4 GPUs (3090); there are also gpu, 2 nodes of 8 GPUs (v100), gpu, 1 node of 2 GPUs (3090)",
    ),
    "parts of GPUs": (
        "echo 'mig*|3|gpu:a100_3g.20gb:2(S:0),gpu:1g.5gb:7(S:0)'",
        {"partition": "mig", "nodes": 3, "gres": "gpu:1g.5gb:7"},
        "mig, 3 nodes of 7 GPUs (1g.5gb)",
    ),
    "GPUs in another partition alone": (
        "echo 'cpu*|300|(null)'; echo 'gpu|12|gpu:h100:4'; echo 'debug|1|gpu:h100:4'",
        {"partition": "gpu", "nodes": 12, "gpus_per_node": 4},
        "gpu, 12 nodes of 4 GPUs (h100); there are also cpu, 300 nodes without GPUs, debug, 1 node of 4 GPUs (h100)",
    ),
    "no default": ("echo 'a|2|(null)'; echo 'b|5|(null)'", {"partition": "b", "nodes": 5, "devices_per_host": 2}, "b, 5 nodes"),
    "lines of one kind": ("echo 'a*|2|gpu:2'; echo 'a*|3|gpu:2(S:1)'", {"nodes": 5, "gpus_per_node": 2}, "a, 5 nodes of 2"),
    "sinfo fails": (
        "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1",
        {"partition": None, "nodes": 2, "gpus_per_node": 1},
        "sinfo failed, so that partition, nodes and GPUs are examples: slurm_load_partitions: Unable to contact",
    ),
    "nothing": ("true", {"partition": None, "nodes": 2, "gpus_per_node": 1}, "sinfo names no partition, so that"),
}  # fmt: skip


@pytest.mark.parametrize("script, expected, chosen", SINFO.values(), ids=SINFO)
def test_nodes_of_slurm_are_read_from_sinfo(
    script: str,
    expected: dict[str, Any],
    chosen: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All lines of sinfo are used, and the choice is printed and written into the file."""
    sinfo = project / "bin" / "sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text(f"#!/bin/sh\n{script}\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", str(sinfo.parent), prepend=":")
    monkeypatch.setattr("pytest_dtfperf.cli.init.shutil.which", lambda _: str(sinfo))
    assert main(["init", "--backend=slurm", "--cluster=daint"]) == 0
    assert chosen in capsys.readouterr().out
    path = project / "perf_tests" / "clusters.toml"
    assert f"# {chosen}" in path.read_text() or f": {chosen}" in path.read_text()
    config = named.load(path)["daint"]
    found = {**config.backend_keys, "devices_per_host": config.devices_per_host}
    for key in ("partition", "nodes", "gpus_per_node", "gres", "devices_per_host"):
        if key in expected or key != "partition":
            assert found.get(key) == expected.get(key), key


def test_existing_files_are_kept(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Existing files are kept, with a message about missing content; a second call writes nothing."""
    for name in ("perf_tests/clusters.toml", ".gitignore"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(EDITED)
    assert main(["init", "--backend=slurm", "--cluster=daint"]) == 0
    shown = capsys.readouterr().out
    assert 'to train on daint, add\n\n[daint]\nbackend = "slurm"\n' in shown
    assert "kept     .gitignore: it should have /perf_results/" in shown
    first = read_files(project)
    assert first["perf_tests/clusters.toml"] == first[".gitignore"] == EDITED
    assert main(["init", "--json"]) == 0
    assert not any(file["written"] for file in json.loads(capsys.readouterr().out)["files"])
    assert read_files(project) == first


def test_folder_with_tests_gets_no_others(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A project with perf tests gets none of the package's, because its conftest.py would lack their fixtures."""
    (project / "perf_tests").mkdir()
    (project / "perf_tests" / "conftest.py").write_text(EDITED)
    assert main(["init"]) == 0
    assert sorted(path.name for path in (project / "perf_tests").iterdir()) == ["clusters.toml", "conftest.py"]
    assert "kept     perf_tests/: it has other tests; none were added" in capsys.readouterr().out


def test_second_call_completes_the_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If files of an earlier call are missing, the next call writes them."""
    assert main(["init"]) == 0
    whole = read_files(project)
    for name in OURS[2:]:
        (project / name).unlink()
    capsys.readouterr()
    assert main(["init"]) == 0
    assert read_files(project) == whole
    assert "it has other tests" not in capsys.readouterr().out


def test_next_commands_begin_with_cd(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that are shown begin with `cd` if the project is another folder."""
    assert main(["init", "my project"]) == 0
    assert "Next:\n\n    cd 'my project'" in capsys.readouterr().out
    assert main(["init"]) == 0
    assert "    cd " not in capsys.readouterr().out


def test_no_pytest_ini_beside_another_configuration(project: Path) -> None:
    """No pytest.ini is written if a file here or above configures pytest."""
    (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\nminversion = '8.4'\n")
    (project / "below").mkdir()
    for folder in (".", "below"):
        assert main(["init", folder]) == 0
        assert not (project / folder / "pytest.ini").exists()


@pytest.mark.parametrize("kind", NIGHTS)
def test_every_nightly_job_calls_dtfperf_nightly(kind: str, project: Path) -> None:
    """Each nightly job is well-formed, and calls `dtfperf nightly` on the given cluster."""
    assert main(["init", "--backend=slurm", "--cluster=daint", f"--nightly={kind}"]) == 0
    text = (project / NIGHTS[kind]).read_text()
    assert "<<" not in text
    assert "daint" in text
    if kind in ("github", "gitlab"):
        assert yaml.safe_load(text)
    if kind == "gitlab":
        job = yaml.safe_load(text)["perf-nightly"]
        commands.understand("\n".join(job["after_script"]))
        assert all(name in text.partition("artifacts:")[0] for name in job["artifacts"]["reports"].values())
    if kind == "sbatch":
        subprocess.run(["bash", "-n", NIGHTS[kind]], check=True)
    assert "nightly --cluster=" in text
    for option in ("--results", "--deadline"):
        assert option in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backend=ssh"], "--backend=ssh needs hosts: --hosts=alice,bob"),
        (["--hosts=alice"], "--hosts is for --backend=ssh"),
        (["--cluster=daint"], "--cluster names what --backend adds"),
        (["--backend=slurm", "--cluster=local"], "--cluster=local is this machine"),
        (["--backend=slurm", "--cluster=a b]"], "--cluster takes letters"),
        (["--backend=ssh", '--hosts=a"b'], "no host's name"),
        (["taken"], "taken/perf_tests/__init__.py cannot be written"),
    ],
)
def test_wrong_arguments_write_nothing(
    words: list[str], message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong argument is one line, and nothing is written."""
    (project / "taken").write_text("")
    assert main(["init", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
    assert sorted(read_files(project)) == ["taken"]


def test_unlisted_gpus_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If nvidia-smi fails, one line has its message, and no tests are written."""
    tool = tmp_path / "tools" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho Something else\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    assert main(["init", str(tmp_path / "mine")]) == 2
    shown = capsys.readouterr().err
    assert "the GPUs of this machine cannot be listed: nvidia-smi ended with exit code 0, and printed 'Something else'" in shown
    assert len(shown.splitlines()) == 1
    assert not (tmp_path / "mine" / "perf_tests").exists()


def test_init_asks_for_the_backend_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the backend is asked for; an invalid answer is refused."""
    program = (
        "import os, pty, sys\n"
        "pid, line = pty.fork()\n"
        "if pid == 0:\n"
        "    os.execv(sys.argv[3], [sys.argv[3], '-m', 'pytest_dtfperf.cli', 'init', sys.argv[1]])\n"
        "os.write(line, sys.argv[2].encode() + b'\\n')\n"
        "shown = b''\n"
        "try:\n"
        "    while part := os.read(line, 4096):\n"
        "        shown += part\n"
        "except OSError:\n"
        "    pass\n"
        "print(shown.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    env = {**os.environ, **zygote.SEARCH_PATH}
    for answer, code in (("ec2", "0"), ("", "0"), ("cloud", "2")):
        command = [sys.executable, "-c", program, str(tmp_path / (answer or "local")), answer, zygote.zygote().python]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        assert "Backend of a cluster besides this machine: local, ssh, slurm, ec2? [local]" in done
        assert done.split()[-1] == code
    assert "cloud" in named.load(tmp_path / "ec2" / "perf_tests" / "clusters.toml")
    assert not (tmp_path / "cloud").exists()


def test_written_tests_are_collected(project: Path) -> None:
    """pytest collects InceptionV3 and MNIST in the new project, with the written sizes."""
    assert main(["init"]) == 0
    done = zygote.python("-m", "pytest", *WITHOUT, "perf_tests", "--dry-run", "--gpus=1,2", COLUMNS="200")
    assert done.returncode == 0, done.stdout
    for wanted in ("inception3 b2 gpus=1", "inception3 b2 gpus=2", "mnist b64 gpus=2", f"rootdir: {project}"):
        assert wanted in done.stdout
