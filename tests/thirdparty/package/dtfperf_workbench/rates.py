"""`rates.txt`: a line for each measurement."""

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.session_exports import SessionResults


def write(folder: SessionFolder, results: SessionResults) -> list[str]:
    lines = [f"{record.images_per_sec:.6g} {record.spec.label}\n" for record in results.records]
    return ["Listed: rates.txt"] if folder.write("rates.txt", "".join(lines).encode()) else []
