"""`dtfperf data`: uploads and downloads."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.testing.backends import wait_until
from tests.cli.table import read
from tests.plugin import zygote
from tests.s3 import HEARS_CTRL_C, NAME, PATIENCE_S, S3, amazon, child, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/results"
MAIN = "from pytest_dtfperf.cli import main\nsys.exit(main(sys.argv[1:]))\n"
SESSION = {"session.json": b"{}", "logs/test_one/worker-0.log": b"step 1\n", "figures/scaling.svg": b"<svg/>"}


@dataclass
class Ended:
    code: int
    out: str
    err: str


Dtfperf = Callable[..., Ended]


@pytest.fixture
def dtfperf(capsys: pytest.CaptureFixture[str]) -> Dtfperf:
    """Run `dtfperf ...` in this process, which has boto3 imported."""

    def call(*arguments: object) -> Ended:
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Ended(code, *capsys.readouterr())

    return call


def _run_in_process(*arguments: object, before: str = "") -> Ended:
    """Run `dtfperf ...` in a process of its own."""
    ended = zygote.python("-c", f"import sys\n{before}{MAIN}", *arguments)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Return a session folder."""
    folder = tmp_path / "perf_results" / "2026-01-01T00-00-00-abc"
    for path, content in SESSION.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def test_session_folder_is_pushed_and_pulled(s3: S3, dtfperf: Dtfperf, session: Path, tmp_path: Path) -> None:
    """Push and pull of a folder and a file report their result in one line, with pull's arguments in any order."""
    assert _run_in_process("data", "push", session, URL) == Ended(
        0, f"dtfperf: {session} -> {URL}: 3 files, 0.0 MB; 3 sent, 0 were there.\n", ""
    )
    assert s3.contents() == {f"results/{path}": content for path, content in SESSION.items()}
    assert "0 sent, 3 were there" in dtfperf("data", "push", session, URL).out

    (tmp_path / "one").write_bytes(b"12345")
    pushed = read("data push", dtfperf("data", "push", tmp_path / "one", f"{URL}/one", "--json").out)
    assert (pushed["files"], pushed["bytes"], pushed["moved"]) == (1, 5, 1)
    pulled = read("data pull", dtfperf("data", "pull", f"{URL}/one", tmp_path / "again", "--json").out)
    assert (pulled["from"], pulled["files"], pulled["bytes"]) == (f"{URL}/one", 1, 5)
    s3.client.delete_object(Bucket=NAME, Key="results/one/one")

    for number, way in enumerate(("there", "back")):
        back = tmp_path / way
        ended = dtfperf("data", "pull", *([back, URL] if number else [URL, back]))
        assert ended == Ended(0, f"dtfperf: {URL} -> {back}: 3 files, 0.0 MB; 3 fetched, 0 were here.\n", "")
        assert {path: (back / path).read_bytes() for path in SESSION} == SESSION


def test_public_bucket_is_a_warning(s3: S3, dtfperf: Dtfperf, session: Path) -> None:
    """An upload to a public bucket has a warning, and continues."""
    s3.client.put_bucket_acl(Bucket=NAME, ACL="public-read")
    ended = dtfperf("data", "push", session, URL)
    assert ended.code == 0
    assert ended.err.startswith(f"dtfperf: warning: the bucket {NAME} is public, by its access control list: anyone can read")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("push", "nothing", URL), 2, "dtfperf: there is no file or folder nothing\n"),
        (("push", ".", "perf-data"), 2, "dtfperf: 'perf-data' is not an S3 URL. Write s3://bucket or s3://bucket/prefix\n"),
        (("pull", ".", f"{URL}/empty"), 1, f"dtfperf: there is nothing below {URL}/empty/\n"),
        (
            ("pull", ".", "s3://nobodys/a"),
            1,
            "dtfperf: s3://nobodys/a: there is no bucket nobodys. Create it with: aws s3 mb s3://nobodys\n",
        ),
    ],
    ids=["nothing here", "no URL", "nothing there", "no bucket"],
)
def test_error_is_one_line_with_its_exit_code(
    s3: S3, dtfperf: Dtfperf, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """An error is one line, and an exit code for its kind."""
    assert dtfperf("data", *arguments) == Ended(code, "", words)


PUSH = "push uploads from this machine: dtfperf data push LOCAL s3://BUCKET/PREFIX"
PULL = "pull fetches to this machine: dtfperf data pull s3://BUCKET/PREFIX LOCAL"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pull", URL, "s3://data/b"), f"'s3://data/b' is a URL, where a file or folder of this machine must be. {PULL}"),
        (("pull", URL, "file:///sets"), f"'file:///sets' is a URL, where a file or folder of this machine must be. {PULL}"),
        (("pull", "https://a.b/c", URL), f"'https://a.b/c' is a URL, where a file or folder of this machine must be. {PULL}"),
        (("pull", "sets", "https://a.b/c"), "'https://a.b/c' is not an S3 URL. Write s3://bucket or s3://bucket/prefix"),
        (("push", URL, "s3://perf-data/b"), f"'{URL}' is a URL, where a file or folder of this machine must be. {PUSH}"),
        (("push", URL, "sets"), f"'{URL}' is a URL, where a file or folder of this machine must be. {PUSH}"),
        (("push", "file:///sets", URL), f"'file:///sets' is a URL, where a file or folder of this machine must be. {PUSH}"),
        (("push", ".", "file:///sets"), "'file:///sets' is not an S3 URL. Write s3://bucket or s3://bucket/prefix"),
    ],
    ids=[
        "pull, bucket to bucket", "pull, to a file's URL", "pull, another URL", "pull, no bucket",
        "push, bucket to bucket", "push, swapped", "push, a file's URL", "push, no bucket",
    ],
)  # fmt: skip
def test_source_and_target_must_be_url_and_path(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One argument must be a URL of S3 and the other a path; anything else is refused without a request."""
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 2
    assert capsys.readouterr() == ("", f"dtfperf: {words}\n")
    assert not any(tmp_path.iterdir())


def test_path_that_begins_with_a_dot_is_a_folder(
    s3: S3, dtfperf: Dtfperf, session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`./s3:` is a folder."""
    monkeypatch.chdir(tmp_path)
    session.rename("s3:")
    assert dtfperf("data", "push", "./s3:", URL).out == f"dtfperf: s3: -> {URL}: 3 files, 0.0 MB; 3 sent, 0 were there.\n"


def test_denied_write_is_one_line(s3: S3, dtfperf: Dtfperf, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without write permission gets an error of one line without a credential."""
    allowed = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
    user = s3.cloud.user({"Version": "2012-10-17", "Statement": [allowed]})
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    ended = dtfperf("data", "push", session, URL)
    assert ended.code == 1
    assert f"dtfperf: {URL}: AWS denies PutObject there" in ended.err
    assert ended.err.count("\n") == 1
    assert not any(value in ended.err for value in user.values())


def test_missing_boto3_names_the_extra(s3: S3, session: Path) -> None:
    """Without boto3, the error names the extra that installs it."""
    ended = _run_in_process("data", "push", session, URL, before="sys.modules['boto3'] = None\n")
    assert ended == Ended(2, "", 'dtfperf: S3 needs boto3, which is not installed: pip install "pytest-dtfperf[ec2]"\n')


def test_interrupted_push_leaves_no_parts(s3: S3, tmp_path: Path) -> None:
    """An interrupted push has exit code 130, one line, and no unfinished upload."""
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/results/big", skip=1)
    flag = tmp_path / "interrupted"
    code = f"import sys{HEARS_CTRL_C.format(flag=flag)}{MAIN}"
    with child("-c", code, "data", "push", str(tmp_path / "big"), URL) as pushing:
        hang.wait_until_executed(PATIENCE_S)
        pushing.send_signal(signal.SIGINT)
        wait_until("it has heard", flag.exists, PATIENCE_S)
        hang.release()
        assert pushing.communicate() == (b"", b"dtfperf: interrupted\n")
    assert pushing.returncode == 130
    assert s3.list_unfinished_uploads() == []


def test_no_credentials_are_stored(s3: S3, dtfperf: Dtfperf, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the cache nor the metadata of uploads has a credential."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-secret-token")
    assert dtfperf("data", "push", session, URL).code == 0
    cache = Path(os.environ["XDG_CACHE_HOME"])
    texts = [path.read_text() for path in cache.rglob("*") if path.is_file()]
    texts.append(json.dumps([s3.head(key)["Metadata"] for key in s3.contents()]))
    for secret in ("a-secret-token", os.environ["AWS_SECRET_ACCESS_KEY"]):
        assert not any(secret in text for text in texts)
