"""moto's application behind a socket of its own on 127.0.0.1, with EC2's own semantics in it and a filter before it."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus

import moto.core.responses
import moto.ec2.urls
import moto.kms.models
import xmltodict
from moto import backends, settings
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.ec2.models import ec2_backends, elastic_network_interfaces
from moto.ec2.responses import EC2Response
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ec2.cloud import catalogue, descriptions, quotas, world
from tests.clusters.ec2.cloud.describing import Describing
from tests.clusters.ec2.cloud.ending import Ending
from tests.clusters.ec2.cloud.faults import Faults
from tests.clusters.ec2.cloud.groups import Groups
from tests.clusters.ec2.cloud.launching import Launching
from tests.clusters.ec2.cloud.policy import Policy, user_id
from tests.clusters.ec2.cloud.spot import Spot
from tests.clusters.ec2.cloud.wire import (
    STATUS,
    Answer,
    Call,
    Environ,
    StartResponse,
    answer_error,
    answer_json,
    answer_text,
    parse_request,
    status,
)

CHECK_IP = "/pretended-checkip"
USER_ID = re.compile(r"<UserId>.*?</UserId>")
CODE = re.compile(rb"<Code>([\w.]+)</Code>")


class PretendEC2(Launching, Ending, Describing, Groups, Spot, EC2Response):
    """EC2's calls: those above where moto's differ from Amazon's."""


class Quiet(MotoRequestHandler):
    """A request handler that logs nothing, accepts broken connections, and has its `Server`'s time."""

    wbufsize = -1  # an answer goes out as one: its head alone would wake the client, which is of this process

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 # werkzeug's name for it
        pass

    def finish(self) -> None:
        """End the answer, also if the client has disconnected."""
        try:
            super().finish()
        except OSError:
            self.rfile.close()

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Return the header `Date` of every answer."""
        server: Server = self.server.app  # type: ignore[assignment] # the only application that is ever served
        return super().date_time_string(timestamp or time.time() + server.ahead_s)


class Server:
    """The application between a test and moto. Every test begins with a new world."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.faults = Faults()
        self.policies: dict[str, Policy] = {}  # access key id -> what it may do; others may do everything
        self.refused: list[str] = []  # actions that a policy did not allow
        self.caller = "192.0.2.1"  # the callers' address, as checkip.amazonaws.com would show it
        self.under_way = 0  # requests under way
        self.ahead_s = 0.0  # of this machine's clock, in the header of every answer
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._count = threading.Lock()

    def reset(self, new: world.World, *regions: str) -> None:
        """Forget everything: calls, faults, policies, and all that was made."""
        self.faults.clear()
        wait_until("no request is under way", lambda: self.under_way == 0)
        self.calls, self.faults, self.policies, self.refused, self.ahead_s = [], Faults(), {}, [], 0.0
        quotas.limits.clear()
        world.begin(new)
        ec2_backends.clear()  # before moto would make each region anew, and drop it
        moto_api_backend.reset()
        for region in regions:
            catalogue.stock(region)

    def __call__(self, environ: Environ, start: StartResponse) -> Answer:
        with self._count:
            self.under_way += 1
        try:
            if environ["PATH_INFO"] == CHECK_IP:
                return answer_text(start, f"{self.caller}\n")
            call = parse_request(environ)
            self.calls.append(call)
            effect = self.faults.struck_by(call)
            return effect(self._carry_out, environ, start, call) if effect else self._carry_out(environ, start)
        finally:
            with self._count:
                self.under_way -= 1

    def _carry_out(self, environ: Environ, start: StartResponse) -> Answer:
        call = parse_request(environ)
        if (policy := self.policies.get(call.key_id)) and (action := policy.find_refused_action(call)):
            self.refused.append(action)
            return answer_error(
                start, call, _get_refusal_code(call), f"You are not authorized to perform this operation: {action}"
            )
        if call.service == "pricing":
            return answer_json(start, catalogue.products(dict(call.parameters)))
        if call.service == "servicequotas":
            quota = quotas.answer(call.parameters.get("QuotaCode", ""))
            return answer_json(start, quota) if quota else answer_error(start, call, "NoSuchResourceException", "No such quota")
        if call.service == "sts" and policy:
            body = b"".join(self._moto(environ, lambda *_: None))
            return answer_text(start, USER_ID.sub(f"<UserId>{user_id(call.key_id)}</UserId>", body.decode()))
        if call.service != "ec2":
            return self._moto(environ, start)  # type: ignore[no-any-return] # moto's annotation is Any
        with world.get_world().lock:  # moto's EC2 knows no threads
            world.get_world().catch_up()
            return self._ec2(environ, start)

    def _ec2(self, environ: Environ, start: StartResponse) -> Answer:
        """moto's answer, with Amazon's status: moto has 400 for every error."""
        given: list[object] = []

        def remember(line: str, headers: object, *_: object) -> None:
            given[:] = [line, headers]

        body = b"".join(self._moto(environ, remember))
        code = CODE.search(body)
        if code and str(given[0]).startswith(str(int(HTTPStatus.BAD_REQUEST))):
            given[0] = status(STATUS.get(code[1].decode(), 400))
        start(*given)
        return [body]


def _get_refusal_code(call: Call) -> str:
    return {"ec2": "UnauthorizedOperation", "s3": "AccessDenied", "sts": "AccessDenied"}.get(
        call.service, "AccessDeniedException"
    )


@cache  # so that the functions are replaced once in a process
def _keep_constants() -> None:
    """Let moto compute once what is the same for all requests, which takes a third of their time."""
    folders = tuple(backends.list_of_moto_modules())
    vars(backends)["list_of_moto_modules"] = lambda: folders
    for module, name in (
        (moto.core.responses, "method_names_from_class"),
        (moto.kms.models, "generate_private_key"),
        (xmltodict, "_validate_name"),
    ):
        vars(module)[name] = cache(vars(module)[name])
    find_keys, known = XFormedAttributePicker.get_possible_keys, dict[tuple[object, ...], tuple[str, ...]]()

    def get_known_keys(self: XFormedAttributePicker, context: AttributePickerContext) -> tuple[str, ...]:
        of_what = (type(context.obj), context.shape, context.key)
        if of_what not in known:
            known[of_what] = tuple(find_keys(self, context))
        return known[of_what]

    setattr(XFormedAttributePicker, "get_possible_keys", get_known_keys)  # noqa: B010 # it is a method


@contextmanager
def run_server() -> Iterator[tuple[Server, str]]:
    """A server and its address. One at a time in a process: moto's state is global."""
    moto.ec2.urls.url_paths = {"{0}/": PretendEC2.dispatch}
    vars(elastic_network_interfaces)["random_public_ip"] = lambda: world.get_world().public_address()
    settings.ENABLE_AMI_VALIDATION = settings.EC2_ENABLE_INSTANCE_TYPE_VALIDATION = True
    settings.ec2_load_default_amis = lambda: False  # a thousand unused images, made anew for every test
    _keep_constants()
    application = Server()
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="pretend Amazon")
    thread.start()
    try:
        with descriptions.share_descriptions():
            yield application, f"http://127.0.0.1:{server.port}"
    finally:
        application.faults.clear()
        server.shutdown()
        thread.join()
        server.server_close()
