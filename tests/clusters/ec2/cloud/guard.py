"""An environment from which the real Amazon cannot be reached, whatever the machine's own settings say."""

import os
from collections.abc import Mapping

NOWHERE = "http://127.0.0.1:9"  # discard: nobody listens there
REGION = "us-east-1"
ACCOUNT = "123456789012"  # the one that moto takes callers for


def environment(url: str = NOWHERE) -> Mapping[str, str]:
    """What a process must have in its environment to speak with `url` alone."""
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


def unwanted(present: Mapping[str, str]) -> list[str]:
    """Variables of this machine that would lead elsewhere or bring credentials along."""
    return [name for name in present if name.startswith(("AWS_", "BOTO_")) and name not in environment()]
