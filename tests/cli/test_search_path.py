"""Commands that run no tests, beside files with names of standard modules or packages, which are not imported."""

from tests.doctor.interpreters import SEES, make_interpreter
from tests.plugin.conftest import CLUSTERS, WITHOUT, PerfTests
from tests.plugin.test_search_path import perf, run_command_beside

__all__ = ["perf"]


def test_audit_ignores_files_with_names_of_modules(perf: PerfTests) -> None:
    """`dtfperf baselines audit` imports none of the files in its folder."""
    perf.environment["PYTEST_ADDOPTS"] = " ".join(WITHOUT)
    run_command_beside(perf, "baselines", "audit", ".")


def test_doctor_ignores_files_with_names_of_modules(perf: PerfTests) -> None:
    """`dtfperf doctor` and its hosts, which import TensorFlow, import none of the files in its folder."""
    # This TensorFlow imports modules of which there are files, as the real one does, which takes six seconds.
    module = f"import inspect, json, random, typing\n{SEES.format(version='2.99.0', gpus=0)}"
    python = make_interpreter(perf.folder / "venv", "2.99.0", module=module)
    (perf.folder / "perf" / "clusters.toml").write_text(CLUSTERS.replace("[local]", f'[local]\npython = "{python}"', 1))
    assert '"2.99.0"' in run_command_beside(perf, "doctor", "--cluster=local", "--gpus=1", "--json").out
