"""A worker that fails in the way of its first argument: `faults.py KIND [ARGUMENT…]`. The ranks after 0 wait.

`faults.py after N KIND …` fails while fewer than N generations have been, and then succeeds.
"""

import ctypes
import errno
import mmap
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path


def missing_module() -> None:
    import no_such_module_anywhere  # noqa: F401


def missing_file() -> None:
    Path("/no/such/file").read_bytes()


def raises() -> None:
    raise KeyError("of the script")


def disk_full(place: str) -> None:
    with open(Path(place, "checkpoint"), "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()


def read_only(place: str) -> None:
    Path(place, "checkpoint").write_bytes(b"x")


def permission(place: str) -> None:
    os.setuid(65534)
    Path(place).read_bytes()


def too_many_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    files = []
    while True:
        files.append(open("/dev/null"))  # noqa: SIM115


def no_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    bytearray(8 << 30)


def eats_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(b"x") * (8 << 20))


def segfault() -> None:
    ctypes.string_at(0)


def bus_error() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        mapped[0]


def port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        socket.create_server(taken.getsockname())


def unknown_host() -> None:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")  # what getaddrinfo raises


def nan_loss() -> None:
    loss = float("inf") - float("inf")
    print(f"Loss is {loss}, stopping training", flush=True)
    sys.exit(1)


def corrupt() -> None:
    pickle.loads(b"<html>not found</html>")  # noqa: S301


def stale() -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/nfs/shard")  # what a read of it raises


def ends_itself(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])
    time.sleep(60)


def leaves(code: str) -> None:
    os._exit(int(code))


def shapes() -> None:
    import torch

    torch.zeros(2, 3) @ torch.zeros(2, 3)


def loader_killed() -> None:
    import torch.utils.data

    class Killer(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            os.kill(os.getpid(), signal.SIGKILL)
            return index

    list(torch.utils.data.DataLoader(Killer(), num_workers=1))


def peer_lost() -> None:
    """Rank 1 fails of itself, and rank 0, which waits for it, because of that."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError("of rank 1 alone")
    dist.all_reduce(torch.ones(1))


def main(kind: str, *arguments: str) -> None:
    if kind == "after":
        limit, kind, *rest = arguments
        if int(os.environ["OUTLAST_GENERATION"]) > int(limit):
            print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} is well", flush=True)
            return
        arguments = tuple(rest)
        if "GO" in os.environ and os.environ["RANK"] == os.environ.get("CULPRIT"):
            Path(os.environ["GO"]).read_bytes()  # a pipe that somebody writes into when all are there
    culprit = os.environ.get("CULPRIT", "0")
    if os.environ["RANK"] != culprit and kind != "peer_lost":
        time.sleep(3600)
    globals()[kind](*arguments)


main(*sys.argv[1:])
