"""Redaction of credentials in logs. Loads no boto3.

At DEBUG, botocore prints the headers and bodies of its requests: the access key's id, the session's token, user data with a
host key in it. urllib3 prints addresses, and a presigned one is a credential. pytest's handler takes all of it with
--log-level=DEBUG, and writes it into reports and JUnit files. CVE-2019-14846 was this in Ansible; botocore was asked to help,
and declined (botocore#2945).
"""

import logging
import re

TALKATIVE = ("botocore", "boto3", "urllib3", "s3transfer")
_HIDDEN = "[hidden]"
_SECRETS = (
    re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"),  # ids of access keys, roles and users
    re.compile(r"(?<=x-amz-security-token)(['\"]?\s*[:=]\s*b?['\"]?)[\w+/=%-]+", re.IGNORECASE),
    re.compile(r"(?<=x-amz-signature)(=)[0-9a-f]+|(?<=signature)(=)[0-9a-f]{32,}", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


def hide_credentials() -> None:
    """Drop these libraries' messages below WARNING, and redact credentials in all others. May be called again."""
    get_logger()
    for name in TALKATIVE:
        library = logging.getLogger(name)
        library.setLevel(max(library.level, logging.WARNING))


def redact(text: str) -> str:
    """Return the text without anything that looks like a credential."""
    for secret in _SECRETS:
        text = secret.sub(lambda found: next(filter(None, found.groups()), "") + _HIDDEN, text)
    return text


class RedactingFilter(logging.Filter):
    """A filter of a logger or a handler that redacts credentials in messages and in the text of tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))  # formatters use it unchanged
            record.exc_info = None
        return True


def get_logger() -> logging.Logger:
    """Return this package's logger."""
    found = logging.getLogger("pytest_dtfperf.clusters.ec2")
    if not any(isinstance(each, RedactingFilter) for each in found.filters):
        found.addFilter(RedactingFilter())
    return found
