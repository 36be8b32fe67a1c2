"""Amazon's filters over descriptions that are plain dictionaries."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from moto.ec2.exceptions import EC2ClientError


def passes(thing: Mapping[str, Any], filters: Mapping[str, Sequence[str]], known: Mapping[str, str]) -> bool:
    """Return whether a description passes all filters; `known` has the field of each filter."""
    tags = {tag["Key"]: tag["Value"] for tag in thing.get("Tags", [])}

    def values(name: str) -> list[str]:
        if name == "tag-key":
            return list(tags)
        if name.startswith("tag:"):
            return [tags[name[4:]]] if name[4:] in tags else []
        if name not in known:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
        return [str(thing.get(known[name], ""))]

    return all(
        any(fnmatch.fnmatchcase(value, pattern) for value in values(name) for pattern in patterns)
        for name, patterns in filters.items()
    )
