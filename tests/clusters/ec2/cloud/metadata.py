"""The metadata service of one instance, version 2: it runs on its machine, and serves a folder's files with a token."""

import http.server
import os
import sys
import uuid
from typing import ClassVar

TOKEN, TTL = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
ADDRESS = "169.254.169.254"


class Handler(http.server.BaseHTTPRequestHandler):
    folder = ""
    tokens: ClassVar[set[str]] = set()
    open_to_all = False  # version 1, where HttpTokens is optional

    def do_PUT(self) -> None:
        if self.path != "/latest/api/token" or not self.headers.get(TTL):
            return self._answer(400)
        token = uuid.uuid4().hex
        self.tokens.add(token)
        return self._answer(200, token.encode())

    def do_GET(self) -> None:
        if not self.open_to_all and self.headers.get(TOKEN) not in self.tokens:
            return self._answer(401)
        try:
            with open(os.path.join(self.folder, self.path.strip("/")), "rb") as file:
                return self._answer(200, file.read())
        except OSError:
            return self._answer(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # its name in the standard library
        pass

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Handler.folder, Handler.open_to_all = sys.argv[1], sys.argv[2] != "required"
    http.server.ThreadingHTTPServer((ADDRESS, 80), Handler).serve_forever()
