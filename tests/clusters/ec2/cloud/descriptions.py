"""Data that boto3 reads and computes for each session and client, in half a second, shared by a process.

These are the descriptions of Amazon's services, the classes of clients made of them, the aliases of events, the signatures
of their handlers, the parts of the header User-Agent, and the settings of TLS, which no request to the pretend Amazon uses.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import botocore.hooks
import botocore.httpsession
import botocore.session
import botocore.useragent
import pytest
from botocore.client import ClientCreator
from botocore.hooks import EventAliaser

from pytest_dtfperf.clusters.ec2 import account

_models: dict[tuple[Any, ...], Any] = {}  # descriptions, by loader, service and requested version
_classes: dict[tuple[str, str], Any] = {}  # by service and version of its description
_names: dict[str, str] = {}  # of an event, as it was called -> as it is called


@contextmanager
def share_descriptions() -> Iterator[None]:
    """Let all sessions that begin within the block share descriptions, classes of clients and aliases."""
    creator: Any = ClientCreator  # whose method is its own affair
    create_class, load_model, begin = creator._create_client_class, creator._load_service_model, EventAliaser.__init__

    def known_model(self: Any, service: str, version: str | None = None) -> Any:
        of_what = (self._loader, service, version)
        if of_what not in _models:
            _models[of_what] = load_model(self, service, version)
        return _models[of_what]

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
        for module, name in (
            (botocore.httpsession, "create_urllib3_context"),
            (botocore.useragent, "sanitize_user_agent_string_component"),
        ):
            patch.setattr(module, name, cache(getattr(module, name)))
        patch.setattr(botocore.hooks, "accepts_kwargs", _accepts_keywords)
        patch.setattr(ClientCreator, "_load_service_model", known_model)
        patch.setattr(ClientCreator, "_create_client_class", known_class)
        patch.setattr(EventAliaser, "__init__", begin_with_names)
        yield


def _accepts_keywords(handler: Callable[..., Any]) -> object:
    """Return whether a handler of events has `**keywords`: botocore makes the whole signature of each for each session."""
    code = getattr(handler, "__code__", None)
    return code.co_flags & inspect.CO_VARKEYWORDS if code else inspect.getfullargspec(handler).varkw
