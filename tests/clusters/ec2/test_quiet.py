"""Credentials stay out of logs."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pytest_dtfperf.clusters.ec2 import log_redaction

KEY = "ASIAIOSFODNN7EXAMPLE"
TOKEN = "FwoGZXIvYXdzEBYaDHqa0AP/+1t=="
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nQyNTUxOQAA\n-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture
def _levels() -> Iterator[None]:
    """Puts back what other tests have."""
    kept = {name: logging.getLogger(name).level for name in log_redaction.TALKATIVE}
    yield
    for name, level in kept.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("_levels")
@pytest.mark.parametrize(
    "name", ["botocore.endpoint", "botocore.auth", "boto3.resources", "urllib3.connectionpool", "s3transfer"]
)
def test_debugging_of_libraries_is_dropped(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Libraries' messages below WARNING reach no handler; warnings do."""
    log_redaction.hide_credentials()
    log_redaction.hide_credentials()

    with caplog.at_level(logging.DEBUG):
        logging.getLogger(name).debug("x-amz-security-token: %s", TOKEN)
        logging.getLogger(name).info("Found credentials")
        logging.getLogger(name).warning("the clock is wrong")

    assert caplog.messages == ["the clock is wrong"]


@pytest.mark.usefixtures("_levels")
def test_quieter_logger_stays_quiet() -> None:
    """A library with a higher level keeps it."""
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    log_redaction.hide_credentials()

    assert logging.getLogger("urllib3").level == logging.ERROR


def test_redaction_does_not_import_boto3() -> None:
    """Installing it loads none of the libraries: a run that uses no EC2 does not notice."""
    code = (
        "import sys; from pytest_dtfperf.clusters.ec2 import log_redaction\n"
        "log_redaction.hide_credentials(); print({*sys.modules} & {*log_redaction.TALKATIVE})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    "text, hidden",
    [
        (f"Credential={KEY}/20260131/us-east-1/ec2", "Credential=[hidden]/20260131/us-east-1/ec2"),
        ("AKIAIOSFODNN7EXAMPLE may not", "[hidden] may not"),
        (f"X-Amz-Security-Token: {TOKEN}", "X-Amz-Security-Token: [hidden]"),
        (f"{{'X-Amz-Security-Token': b'{TOKEN}', 'Host': 'x'}}", "{'X-Amz-Security-Token': b'[hidden]', 'Host': 'x'}"),
        ("?X-Amz-Security-Token=F%2FG&X-Amz-Signature=0a&a=b", "?X-Amz-Security-Token=[hidden]&X-Amz-Signature=[hidden]&a=b"),
        (f"key:\n{PEM}\nend", "key:\n[hidden]\nend"),
        (PEM[:60], "[hidden]"),
        ("arn:aws:iam::111122223333:user/me in eu-west-1", "arn:aws:iam::111122223333:user/me in eu-west-1"),
        ("ASIA is a continent", "ASIA is a continent"),
    ],
)  # fmt: skip
def test_redact(text: str, hidden: str) -> None:
    """Credentials are hidden in every printed form, and other text is not."""
    assert log_redaction.redact(text) == hidden


def test_own_logger_hides_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """The package's own log has no credentials, in arguments or tracebacks, before any handler."""
    logger = log_redaction.get_logger()
    assert log_redaction.get_logger() is logger
    with caplog.at_level(logging.DEBUG):
        logger.debug("asked with %s and %r", KEY, {"X-Amz-Security-Token": TOKEN})
        try:
            raise ValueError(f"bad key {PEM}")
        except ValueError:
            logger.exception("it failed: %d", 7)

    assert caplog.messages == ["asked with [hidden] and {'X-Amz-Security-Token': '[hidden]'}", "it failed: 7"]
    assert "ValueError: bad key [hidden]" in caplog.text
    assert not any(secret in caplog.text for secret in (KEY, TOKEN, "b3BlbnNzaC1rZXktdjEAAAAA"))
