"""Calls servers of a training, as any program may: `python -m tests.launch.stranger ADDRESS PORT...` prints each answer."""

import socket
import sys

REFUSED, UNANSWERED, ANSWERED = "refused", "no answer", "gRPC answers"
_ANSWER_S = 3.0  # a server on this machine needs none; a lost SYN is sent again after one
_SETTINGS = 4  # a frame of HTTP/2
SETTINGS_FRAME = bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])  # that says nothing


def call(address: str, port: int) -> str:
    """Return how a server answers the first bytes of HTTP/2: a gRPC server sends a frame of settings."""
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_S) as line:
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS_FRAME)
            output = line.recv(9)
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return UNANSWERED
    return ANSWERED if output[3:4] == bytes([_SETTINGS]) else f"something else answers: {output!r}"


if __name__ == "__main__":
    for port in sys.argv[2:]:
        print(call(sys.argv[1], int(port)))
