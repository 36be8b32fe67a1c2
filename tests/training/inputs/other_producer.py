"""A producer for data=zmq that shares no code with the package; its argument sets how it ends."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import zmq

END = sys.argv[1]  # what happens after two batches
wanted: dict[str, Any] = json.loads(sys.stdin.readline())
if END == "lives":
    Path(sys.argv[2]).write_text(str(os.getpid()))

count, (height, width, channels) = wanted["batch_size"], wanted["image_shape"]
shape = [count, height, width, channels]
header = {"version": 1, "images": {"dtype": "uint8", "shape": shape}, "labels": {"dtype": "int32", "shape": [count]}}
pixels, labels = bytes(count * height * width * channels), bytes(4 * count)

socket = zmq.Context().socket(zmq.PUSH)
socket.connect(wanted["endpoint"])


def send(head: object = header, images: bytes = pixels, answers: bytes = labels) -> None:
    socket.send_multipart([json.dumps(head).encode(), images, answers])


for _ in range(2 * wanted["towers"]):
    send()
match END:
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "exits":
        sys.exit(3)
    case "wrong shape":
        send({**header, "images": {"dtype": "uint8", "shape": [count, 1, 1, 1]}})
    case "too few bytes":
        send(images=pixels[1:])
    case "wrong label":
        send(answers=b"\xff\xff\x00\x00" * count)
    case "no header":
        socket.send_multipart([b"hello"])
    case "lives":
        while True:
            send()
sys.stdin.read()  # until the worker is gone
