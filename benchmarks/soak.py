"""A job that is restarted, joined, left and pestered for a long time: memory, descriptors and log lines stay flat.

    python benchmarks/soak.py [--rounds 10] [--restarts 1000] [--joins 10000] [--strangers 3000] [--seconds 3600]

Each round does its share, and tells what the agent and the coordinator have then. Strangers connect and say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import msgspec
import psutil

from outlast.agent.coordinator_link.ask import ask
from outlast.launch import Endpoint
from outlast.protocol.membership import Join, Report, State
from outlast.protocol.requests import Ask
from outlast.transport.wire import Wire
from processes import Run, launcher, machine, memory, table, until

TOKEN = "the token of a soak test"
WORKER = """
import os, pathlib, signal, sys
pathlib.Path(sys.argv[1], os.environ["OUTLAST_GENERATION"]).touch()
signal.pause()
"""


class Soak:
    """The job, and those who trouble it."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place, self.generations = place, place / "generations"
        self.generations.mkdir()
        script = place / "worker.py"
        script.write_text(WORKER)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.endpoint = Endpoint("127.0.0.1", probe.getsockname()[1])
        argv = launcher(
            *("outlast", "--nnodes=1", "--nproc-per-node=1", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=soak"),
            *(str(script), str(self.generations)),
        )
        self.entrypoint = str(script)
        self.run = stack.enter_context(Run(argv, log=place / "log", env={"OUTLAST_TOKEN": TOKEN}))
        self.await_generation(1)

    def await_generation(self, least: int) -> int:
        def newest() -> int:
            return max((int(path.name) for path in self.generations.iterdir()), default=0)

        until(lambda: newest() >= least, timeout=120, runs=[self.run], what=f"generation {least}")
        return newest()

    def restart(self, times: int) -> None:
        for _ in range(times):
            before = self.await_generation(1)
            asyncio.run(ask(self.endpoint, TOKEN, None, Ask("restart", "the soak test")))
            self.await_generation(before + 1)

    def join(self, first: int, times: int) -> None:
        """Come as a spare, and leave."""
        for number in range(first, first + times):
            with socket.create_connection((self.endpoint.host, self.endpoint.port), timeout=120) as connection:
                wire = Wire(TOKEN, agent=True)
                connection.sendall(wire.hello)
                while not wire.ready:
                    wire.feed(connection.recv(65536))
                report = Report(seq=1, floor=0, generation=0, state=State.IDLE, clear=True, store_port=1)
                joining = Join(
                    node=f"node-{number}",
                    name=f"node-{number}",
                    nproc=1,
                    role="default",
                    addr="127.0.0.1",
                    job="soak",
                    entrypoint=self.entrypoint,
                    nnodes=(1, 1),
                    report=report,
                )
                connection.sendall(wire.take() + wire.pack(msgspec.msgpack.encode(joining)))
                connection.recv(65536)

    def pester(self, strangers: int) -> None:
        """All at once; they stay until they are shown out, or the next ones come."""
        with ExitStack() as crowd:
            for _ in range(strangers):
                crowd.enter_context(socket.create_connection((self.endpoint.host, self.endpoint.port), timeout=120))
            self.join(-1, 1)  # somebody who knows the token gets through

    def figures(self) -> list[str]:
        processes = [self.run.pid]
        others = self.run.tree()[1:]
        processes += [each.pid for each in others if any("outlast.coordinator" in word for word in each.cmdline())]
        figures = []
        for pid in processes:
            figures += [f"{memory(pid)[0]:.1f}", str(psutil.Process(pid).num_fds())]
        return [*figures, str(len(self.run.log.read_bytes().splitlines()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--joins", type=int, default=10_000)
    parser.add_argument("--strangers", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=0.0, help="add rounds until this much time has passed")
    args = parser.parse_args()
    print(f"{machine()}; {args.restarts} restarts, {args.joins} joins, {args.strangers} strangers each round\n")
    header = ["round", "agent MiB", "fds", "coordinator MiB", "fds", "log lines"]
    with ExitStack() as stack:
        soak = Soak(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        rows = [["start", *soak.figures()]]
        begun = time.monotonic()
        for number in count():
            if number >= args.rounds and time.monotonic() - begun >= args.seconds:
                break
            soak.restart(args.restarts // args.rounds)
            soak.join(number * args.joins, args.joins // args.rounds)
            soak.pester(args.strangers)
            rows.append([str(number + 1), *soak.figures()])
            print(" ".join(rows[-1]), flush=True)
    print("\n" + table(header, rows) + f"\n{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
