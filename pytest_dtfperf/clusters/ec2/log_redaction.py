"""Credentials are kept out of logs. Loads no boto3.

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
    re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}"),  # an access key's id, a role's, a user's
    re.compile(r"(?<=x-amz-security-token)(['\"]?\s*[:=]\s*b?['\"]?)[\w+/=%-]+", re.IGNORECASE),
    re.compile(r"(?<=x-amz-signature)(=)[0-9a-f]+|(?<=signature)(=)[0-9a-f]{32,}", re.IGNORECASE),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)


def hide_credentials() -> None:
    """Keep what these libraries say below WARNING from everybody, and credentials out of what we say. May be called again."""
    get_logger()
    for name in TALKATIVE:
        library = logging.getLogger(name)
        library.setLevel(max(library.level, logging.WARNING))


def redact(text: str) -> str:
    """The text without what looks like a credential."""
    for secret in _SECRETS:
        text = secret.sub(lambda found: next(filter(None, found.groups()), "") + _HIDDEN, text)
    return text


class Redacting(logging.Filter):
    """On a logger or a handler: what passes has lost what looks like a credential, the traceback's text included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info:
            record.exc_text = redact(logging.Formatter().formatException(record.exc_info))  # formatters take it as it is
            record.exc_info = None
        return True


def get_logger() -> logging.Logger:
    """Ours."""
    found = logging.getLogger("pytest_dtfperf.clusters.ec2")
    if not any(isinstance(each, Redacting) for each in found.filters):
        found.addFilter(Redacting())
    return found
