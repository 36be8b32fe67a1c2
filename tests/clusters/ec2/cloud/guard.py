"""An environment from which the real Amazon cannot be reached, independent of the machine's own settings."""

import os
from collections.abc import Mapping

NOWHERE = "http://127.0.0.1:9"  # the discard port, without a listener
REGION = "us-east-1"
ACCOUNT = "123456789012"  # the one that moto takes callers for


def environment(url: str = NOWHERE) -> Mapping[str, str]:
    """Return the variables with which a process connects to `url` alone."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


def list_unwanted_variables(present: Mapping[str, str]) -> list[str]:
    """Return variables of this machine that would lead elsewhere or add credentials."""
    return [name for name in present if name.startswith(("AWS_", "BOTO_")) and name not in environment()]
