"""A worker that stands in for training, without torch: it says where it stands, and beats until it is told to end.

It shares a directory with the test: a file `finish` there ends every worker with 0, `<host>.exit` ends the worker
of that host, once, with the code in it. In `<generation>.<rank>.<host>` lie the times of its birth and last beat.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

BEAT = 0.005


def born() -> float:
    """When this process was forked, on the monotonic clock: the end of the kernel's tick in which it was."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = (ticks + 1) / os.sysconf("SC_CLK_TCK")
    return since_boot - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())


def say(place: dict[str, object]) -> None:
    # One write: the lines of other processes come through the same pipe.
    os.write(1, f"worker {json.dumps(place)}\n".encode())


def couple(finish: Path) -> None:
    """Depend on all others, as training does: when one of them is gone, this one crashes too."""
    master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        listener = socket.create_server(("", master[1]))
        expected = int(os.environ["WORLD_SIZE"]) - 1
        connections = [listener.accept()[0] for _ in range(expected)]
    else:
        connections = [_reach(master)]
    say({"coupled": int(os.environ["OUTLAST_GENERATION"])})
    for connection in connections:
        threading.Thread(target=_hold, args=(connection, finish), daemon=True).start()


def _reach(master: tuple[str, int]) -> socket.socket:
    while True:
        connection = socket.socket()
        if connection.connect_ex(master) == 0:
            return connection
        connection.close()
        time.sleep(BEAT)


def _hold(connection: socket.socket, finish: Path) -> None:
    try:
        connection.recv(1)
    except OSError:
        pass
    if not finish.exists():
        os._exit(17)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shared", type=Path)
    parser.add_argument("--coupled", action="store_true", help="crash when another worker is gone")
    parser.add_argument("--stubborn", action="store_true", help="do not end on SIGTERM")
    args = parser.parse_args()
    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    host = socket.gethostname()
    finish, exit_file = args.shared / "finish", args.shared / f"{host}.exit"
    number = {name.lower(): int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")}
    generation = int(os.environ["OUTLAST_GENERATION"])
    birth = born()
    life = (args.shared / f"{generation}.{number['rank']}.{host}").open("xb", buffering=0)
    life.write(struct.pack("dd", birth, time.monotonic()))
    say(
        {
            "host": host,
            "generation": generation,
            **number,
            "master_addr": os.environ["MASTER_ADDR"],
            "master_port": int(os.environ["MASTER_PORT"]),
            "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        }
    )
    if args.coupled:
        threading.Thread(target=couple, args=(finish,), daemon=True).start()
    while not finish.exists():
        os.pwrite(life.fileno(), struct.pack("dd", birth, time.monotonic()), 0)
        if exit_file.exists():
            code = int(exit_file.read_text())
            exit_file.unlink()
            sys.exit(code)
        time.sleep(BEAT)


if __name__ == "__main__":
    main()
