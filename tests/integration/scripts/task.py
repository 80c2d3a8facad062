"""A task of a job with roles: says who it is, serves at its address, and does as signals say.

SIGUSR1: it finishes with 0. SIGUSR2: it fails with 7. `--steps`: the chief makes steps. `--fail ROLE`: such a task
fails at once. `--eat MIB`: the chief's first life takes so much memory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--steps", action="store_true")
    asked.add_argument("--fail", default="")
    asked.add_argument("--stubborn", action="store_true")
    asked.add_argument("--eat", type=int, default=0)
    args = asked.parse_args()
    name, life = os.environ["OUTLAST_TASK"], os.environ["OUTLAST_LIFE"]
    config = json.loads(os.environ["OUTLAST_CLUSTER"])
    mine = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(7))
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.fail == os.environ["OUTLAST_ROLE"]:
        sys.exit(7)
    host, port = mine.split(":")
    listener = socket.create_server((host, int(port)))
    threading.Thread(target=serve, args=(listener,), daemon=True).start()
    generation = os.environ["OUTLAST_GENERATION"]
    print(f"{name} life {life} in generation {generation}: pid {os.getpid()} at {mine}", flush=True)
    if args.eat and name == "chief-0" and life == "1":
        eaten = bytearray(args.eat << 20)
        eaten[::4096] = b"x" * len(eaten[::4096])
    if args.steps and name == "chief-0":
        train()
    while True:
        time.sleep(60)


def serve(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


def train() -> None:
    import outlast

    number = 0
    while True:
        number += 1
        outlast.step(number)
        time.sleep(0.05)


main()
