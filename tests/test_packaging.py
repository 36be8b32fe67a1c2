"""Tests of the packages that pip installs: a wheel that works alone, and a source distribution that builds."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from pytest_dtfperf.doctor.findings import TENSORFLOW

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


@pytest.fixture(scope="module")
def site_folder(dist_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel brings, as pip lays it out."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = dist_folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_wheel_has_types_schemas_and_published_results(site_folder: Path) -> None:
    """The wheel has py.typed, schemas, published references, templates and requirements of hosts, and no top-level package but
    ours."""
    assert (site_folder / "pytest_dtfperf" / "py.typed").exists()
    assert (site_folder / "pytest_dtfperf" / "baselines" / "schema" / "baseline.json").exists()
    assert (site_folder / "pytest_dtfperf" / "baselines" / "published" / "dgx1.json").exists()
    assert (site_folder / "pytest_dtfperf" / "clusters" / "ssh" / "requirements-cuda.txt").exists()
    assert (site_folder / "pytest_dtfperf" / "report" / "page" / "templates" / "page.html").exists()
    assert (site_folder / "pytest_dtfperf" / "cli" / "init" / "perf_tests" / "test_inception3.py").exists()
    assert sorted(path.name for path in site_folder.iterdir() if not path.name.endswith(".dist-info")) == ["pytest_dtfperf"]


def test_wheel_alone_is_a_pytest_plugin(site_folder: Path, tmp_path: Path) -> None:
    """pytest finds the installed plugin by its entry point and shows its options, and the plugin finds the published
    results."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(site_folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--dtfperf-cluster=NAME" in ended.stdout
    (entry_points,) = site_folder.glob("*.dist-info/entry_points.txt")
    assert "[pytest11]\ndtfperf = pytest_dtfperf.plugin.hooks" in entry_points.read_text()
    code = "import pytest_dtfperf.baselines.references as r; print(r.__file__, len(r.references()))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(site_folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(site_folder / "pytest_dtfperf" / "baselines" / "references.py"), "339"]


def test_source_distribution_has_all_parts(dist_folder: Path) -> None:
    """The source distribution has the package, its baselines, perf tests, tests and documents."""
    (sdist,) = dist_folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "docs/tutorial.md",
        "pytest_dtfperf/plugin/hooks.py",
        "baselines/dgx1.json",
        "perf_tests/clusters.toml",
        "tests/test_packaging.py",
    }
    assert wanted <= names


@pytest.mark.parametrize("variant", ["cpu", "cuda"])
def test_requirements_of_hosts_are_the_locked_ones(variant: str, tmp_path: Path) -> None:
    """The requirements that `setup = "uv"` installs on a host are those of uv.lock, with hashes."""
    uv = REPOSITORY / ".tools" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("ci/setup brings uv")
    fresh = tmp_path / "requirements.txt"
    command = [str(uv), "export", "--quiet", "--frozen", "--offline", "--no-header", "--no-emit-project", "--no-default-groups"]
    command += ["--only-group", f"host-{variant}", "--output-file", str(fresh)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    kept = REPOSITORY / "pytest_dtfperf" / "clusters" / "ssh" / f"requirements-{variant}.txt"
    assert fresh.read_text() == kept.read_text(), f"run: {' '.join(command[:-1])} {kept.relative_to(REPOSITORY)}"
    assert "--hash=sha256:" in kept.read_text()


def test_doctor_advises_the_locked_tensorflow() -> None:
    """The version that the doctor advises is in both requirements of `setup = "uv"`."""
    for variant, package in (("cpu", "tensorflow-cpu"), ("cuda", "tensorflow")):
        kept = REPOSITORY / "pytest_dtfperf" / "clusters" / "ssh" / f"requirements-{variant}.txt"
        assert f"\n{package}=={TENSORFLOW} " in kept.read_text()
