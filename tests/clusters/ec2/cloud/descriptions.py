"""What boto3 reads and works out for each session and client anew, in half a second, done once in a process.

Descriptions of Amazon's services, the classes of clients that it makes of these, and what else its events are called.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import botocore.session
import pytest
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser

from pytest_dtfperf.clusters.ec2 import account

_classes: dict[tuple[str, str], Any] = {}  # by service and version of its description
_names: dict[str, str] = {}  # of an event, as it was called -> as it is called


@contextmanager
def shared() -> Iterator[None]:
    """Sessions that begin within the block, whoever begins them, have those that there are already."""
    creator: Any = ClientCreator  # whose method is its own affair
    create_class, begin = creator._create_client_class, EventAliaser.__init__

    def known_class(self: Any, service: str, description: Any) -> Any:
        of_what = (service, description.api_version)
        if of_what not in _classes:
            _classes[of_what] = create_class(self, service, description)
        return _classes[of_what]

    def begin_with_names(self: Any, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more)
        self._alias_name_cache = _names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", account._get_service_loader)
        patch.setattr(ClientCreator, "_create_client_class", known_class)
        patch.setattr(EventAliaser, "__init__", begin_with_names)
        yield
