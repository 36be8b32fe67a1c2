"""An account with stubbed clients, which check the requests and answer from a list. It needs no network."""

from typing import Any

import boto3
from botocore.stub import Stubber

from pytest_dtfperf.clusters.ec2.account import Account


class StubbedAccount:
    """An account that gives its answers in the order of their addition; an unexpected request fails."""

    def __init__(self, region: str = "eu-west-1") -> None:
        session = boto3.Session("AKIAIOSFODNN7EXAMPLE", "secret", region_name=region)
        self.account = Account(session, region, "111122223333", "arn:aws:iam::111122223333:user/me")
        self._stubs = {name: Stubber(getattr(self.account, name)) for name in ("ec2", "pricing", "quotas")}
        for stub in self._stubs.values():
            stub.activate()

    def answer(self, client: str, method: str, answer: dict[str, Any], **expected: Any) -> None:
        """Add an answer to the next request, which must have the `expected` parameters, if there are any."""
        self._stubs[client].add_response(method, answer, expected or None)

    def refuse(self, client: str, method: str, code: str, message: str = "no") -> None:
        self._stubs[client].add_client_error(method, code, message)

    def assert_all_asked(self) -> None:
        for stub in self._stubs.values():
            stub.assert_no_pending_responses()
