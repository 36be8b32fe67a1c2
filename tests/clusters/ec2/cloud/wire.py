"""A request as it was sent, and the answers that are not moto's."""

import io
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Answer = Iterable[bytes]

# The statuses of Amazon's errors; others have 400. botocore repeats 5xx by itself, which matters.
STATUS = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientCapacityOnHost": 500,
    "InternalError": 500,
    "Server.InternalError": 500,
    "Unavailable": 503,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "AccessDeniedException": 400,
    "AuthFailure": 401,
    "ExpiredToken": 403,
    "InvalidClientTokenId": 403,
    "SignatureDoesNotMatch": 403,
}
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 500: "Internal Server Error"}


@dataclass(frozen=True)
class Call:
    """One request: `parameters` are flat as they stand in the form, or those of the JSON; S3 has a method and a path."""

    service: str
    action: str
    region: str = ""
    key_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)

    def values(self, prefix: str) -> list[str]:
        """All parameters of a list or structure, such as InstanceId of InstanceId.1 and InstanceId.2."""
        return [str(v) for k, v in self.parameters.items() if k == prefix or k.startswith(prefix + ".")]


def parse_request(environ: Environ) -> Call:
    """Return the content of a request, and leave the request unchanged."""
    scope = re.search(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    key_id, region, service = scope.groups() if scope else ("", "", "s3")
    if target := environ.get("HTTP_X_AMZ_TARGET"):
        return Call(service, target.split(".")[-1], region, key_id, json.loads(_body(environ) or b"{}"))
    if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        form = dict(parse_qsl(_body(environ).decode(), keep_blank_values=True))
        return Call(service, form.get("Action", "?"), region, key_id, form)
    query = dict(parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True))
    return Call(service, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", region, key_id, query)


def _body(environ: Environ) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def status(code: int) -> str:
    return f"{code} {REASONS.get(code, 'Service Unavailable')}"


def answer_json(start: StartResponse, body: object, code: int = 200) -> Answer:
    return _answer(start, code, "application/x-amz-json-1.1", json.dumps(body))


def answer_text(start: StartResponse, text: str) -> Answer:
    return _answer(start, 200, "text/plain", text)


def answer_error(start: StartResponse, call: Call, code: str, message: str) -> Answer:
    """Answer with an error in the format of the service."""
    number = STATUS.get(code, 400)
    if call.service in ("ssm", "pricing", "servicequotas"):
        return _answer(start, number, "application/x-amz-json-1.1", json.dumps({"__type": code, "message": message}))
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    if call.service == "ec2":
        error = f"<Response><Errors>{error}</Errors><RequestID>0-0</RequestID></Response>"
    elif call.service != "s3":
        error = f"<ErrorResponse>{error}<RequestId>0-0</RequestId></ErrorResponse>"
    return _answer(start, number, "text/xml", f'<?xml version="1.0" encoding="UTF-8"?>{error}')


def _answer(start: StartResponse, number: int, kind: str, text: str) -> Answer:
    body = text.encode()
    start(status(number), [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
