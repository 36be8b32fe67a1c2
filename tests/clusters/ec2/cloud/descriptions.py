"""Data that boto3 reads and computes for each session and client, in half a second, shared by a process.

These are the descriptions of Amazon's services, the classes of clients made of them, and the aliases of events.
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
def share_descriptions() -> Iterator[None]:
    """Let all sessions that begin within the block share descriptions, classes of clients and aliases."""
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
