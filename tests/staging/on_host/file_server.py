"""Files over HTTP with the problems of a network: answers cut short, connections reset, errors, other content."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "X-Amz-Signature=secret"  # what every URL holds, and no message may


@dataclass
class Request:
    """Hold a received request."""

    path: str
    headers: Mapping[str, str]

    @property
    def begins_at(self) -> int:
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(found[1]) if found else 0


@dataclass
class Answer:
    """Describe how a file is served; the default is unchanged."""

    status: int = 200
    body: bytes = b""  # of an error
    at_most: int | None = None  # bytes, then the connection ends
    knows_ranges: bool = True
    held_until: threading.Event | None = None  # nothing comes before that, but the first byte
    changed: Callable[[bytes], bytes] = lambda content: content


@dataclass
class FileServer:
    """Serve files. `answers` are used one after the other for each file, and then the file is served unchanged."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url_of(self, path: str) -> str:
        return f"{self.url}/{path}?{SECRET}"

    def find_requests(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def next_answer(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
            waiting = self.answers.get(request.path)
            return waiting.pop(0) if waiting else Answer()


@contextmanager
def serve_files() -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            request = Request(self.path.lstrip("/").partition("?")[0], dict(self.headers))
            answer = served.next_answer(request)
            if answer.status != 200:
                self._send(answer.status, answer.body, len(answer.body))
                return
            content = answer.changed(served.files[request.path])
            begin = request.begins_at if answer.knows_ranges else 0
            rest = content[begin:]
            sent = rest if answer.at_most is None else rest[: answer.at_most]
            self._send(206 if begin else 200, b"" if answer.held_until else sent, len(rest))
            if answer.held_until:
                self.wfile.write(sent[:1])
                answer.held_until.wait()
                self.wfile.write(sent[1:])
            self.close_connection = len(sent) < len(rest)

        def _send(self, status: int, body: bytes, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *request: object) -> None:
            """A client that was killed is no error."""

    server = Server(("127.0.0.1", 0), Handler)
    served = FileServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        for answers in served.answers.values():
            for answer in answers:
                if answer.held_until:
                    answer.held_until.set()
        server.shutdown()
        thread.join()
        server.server_close()
