"""How fast the coordinator forms and re-forms a job, and what it costs, beside torchrun's own rendezvous.

One real coordinator process and real sockets on loopback; the agents are simulated (crowd.py), in processes of
their own. torchrun's side is the rendezvous that its agent does, with nothing around it: one TCPStore, one c10d
rendezvous handler per node, in threads of a few processes.

    python benchmarks/control_plane.py [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from crowd import ENTRYPOINT, Crowd
from outlast.core.membership.liveness import BEATS
from outlast.protocol.rules import Rules
from outlast.protocol.succession import Term
from outlast.transport.commission import Commission
from outlast.transport.wire import Wire
from processes import cpu_seconds, machine, memory, table

HEARTBEAT = 1.0
JOB = "benchmark"
STARTING = 120.0  # seconds for processes that import torch
SPAWN = multiprocessing.get_context("spawn")


class Measured(NamedTuple):
    """One job. Seconds on the clock, and the coordinator's own CPU seconds: those hold on a busy machine too."""

    formed: float
    forming_cpu: float
    reformed: float
    reforming_cpu: float
    cpu: float  # % of one core, at rest
    rss: float


def outlast(nodes: int, *, crowds: int, seconds: float, deadline: float) -> Measured:
    """One job of this many nodes: formed, at rest for `seconds`, and re-formed without one of them."""
    token = secrets.token_hex(16)
    with ExitStack() as stack:
        coordinator, endpoint = start_coordinator(stack, token, nodes, deadline)
        links = []
        for i in range(crowds):
            share = range(nodes)[i::crowds]
            link, process = _start_crowd(endpoint, token, nodes, nodes * i // crowds, len(share))
            stack.callback(_end, process)
            links.append(stack.enter_context(link))
        _answers(links, deadline)
        used = [cpu_seconds(coordinator.pid)]
        formed = _formed(links, deadline)
        used.append(cpu_seconds(coordinator.pid))
        time.sleep(2 * HEARTBEAT)
        used.append(cpu_seconds(coordinator.pid))
        time.sleep(seconds)
        used.append(cpu_seconds(coordinator.pid))
        rss, _ = memory(coordinator.pid)
        reformed = _reformed(links, deadline)
        used.append(cpu_seconds(coordinator.pid))
        forming, _, resting, reforming = (b - a for a, b in pairwise(used))
        return Measured(formed, forming, reformed, reforming, 100 * resting / seconds, rss)


def start_coordinator(
    stack: ExitStack, token: str, nodes: int, deadline: float
) -> tuple[subprocess.Popen[bytes], tuple[str, int]]:
    """A coordinator that answers, until the stack ends, and where."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4096))
    place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    coordinator = stack.enter_context(_coordinator(listener, token, nodes, str(place / "journal")))
    stack.callback(coordinator.kill)
    endpoint = listener.getsockname()
    listener.close()
    _await_answer(endpoint, token, deadline)
    return coordinator, endpoint


def _coordinator(listener: socket.socket, token: str, nodes: int, journal: str) -> subprocess.Popen[bytes]:
    rules = Rules(
        job=JOB,
        entrypoint=ENTRYPOINT,
        min_nodes=max(1, nodes - 1),
        max_nodes=nodes,
        last_call=600.0,  # so that it forms when all are here, and not before
        node_timeout=BEATS * HEARTBEAT,
    )
    commission = Commission(
        rules=rules,
        token=token,
        listener=listener.fileno(),
        shutdown_timeout=1.0,
        term=Term(1, "node-00000"),
        run="benchmark",
        log_level="warning",
        journal=journal,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast.coordinator"], stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
    )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(msgspec.msgpack.encode(commission))
    return process


def _await_answer(endpoint: tuple[str, int], token: str, deadline: float) -> None:
    """Knock until the coordinator answers: its own start is not what is measured."""
    wire = Wire(token, agent=True)
    with socket.create_connection(endpoint, timeout=deadline) as knock:
        knock.sendall(wire.hello)
        while not wire.ready:
            wire.feed(knock.recv(1024))
        knock.sendall(wire.take())


def _start_crowd(
    endpoint: tuple[str, int], token: str, nodes: int, first: int, count: int
) -> tuple[Connection, BaseProcess]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_crowd, args=(theirs, endpoint, token, nodes, first, count), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _crowd(orders: Connection, endpoint: tuple[str, int], token: str, nodes: int, first: int, count: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_limit()
    bounds = (max(1, nodes - 1), nodes)
    crowd = Crowd(orders, endpoint, token, job=JOB, nnodes=bounds, heartbeat=HEARTBEAT)
    try:
        crowd.run(first, count)
    except (OSError, RuntimeError) as error:
        orders.send(error)


def _formed(links: Sequence[Connection], deadline: float) -> float:
    for link in links:
        link.send("join")
    times = _answers(links, deadline)
    return float(max(end for _, end in times) - min(begin for begin, _ in times))


def _reformed(links: Sequence[Connection], deadline: float) -> float:
    for link in links:
        link.send("await")
    _answers(links, deadline)
    links[-1].send("lose")
    lost_at = links[-1].recv()
    return float(max(end for _, end in _answers(links, deadline)) - lost_at)


def _answers(links: Sequence[Connection], deadline: float) -> list[Any]:
    answers = []
    for link in links:
        if not wait([link], deadline):
            raise TimeoutError(f"no answer from the agents within {deadline:g} s")
        answer = link.recv()
        if isinstance(answer, Exception):
            raise answer
        answers.append(answer)
    return answers


def _end(process: BaseProcess) -> None:
    process.terminate()
    process.join()


def torchrun(nodes: int, *, processes: int, deadline: float) -> float | None:
    """Seconds until every one of this many c10d rendezvous handlers has its rank; None past the deadline."""
    with ExitStack() as stack:
        links: list[Connection] = []
        port = 0
        for i in range(min(processes, nodes)):
            ours, theirs = SPAWN.Pipe()
            count = len(range(nodes)[i :: min(processes, nodes)])
            process = SPAWN.Process(target=_rendezvous, args=(theirs, port, nodes, count, deadline), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process)
            links.append(stack.enter_context(ours))
            (port,) = _answers(links[-1:], STARTING)
        _answers(links, STARTING)
        began = time.monotonic()
        for link in links:
            link.send("join")
        ended = _answers(links, deadline + STARTING)
        return None if None in ended else max(ended) - began


def _rendezvous(orders: Connection, port: int, nodes: int, count: int, deadline: float) -> None:
    """Some of the nodes, a thread each; the first process also has the store."""
    import logging

    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    patience = timedelta(seconds=deadline + STARTING)
    server = None if port else TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    port = server.port if server is not None else port
    orders.send(port)

    def handler() -> DynamicRendezvousHandler:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
        parameters = RendezvousParameters(
            backend="c10d",
            endpoint=f"127.0.0.1:{port}",
            run_id=JOB,
            min_nodes=nodes,
            max_nodes=nodes,
            local_addr="127.0.0.1",
            join_timeout=int(deadline),
        )
        return create_handler(store, C10dRendezvousBackend(store, JOB), parameters)

    def joined(handler: DynamicRendezvousHandler) -> float | None:
        try:
            handler.next_rendezvous()
        except RendezvousError:
            return None
        return time.monotonic()

    handlers = [handler() for _ in range(count)]  # kept: their heartbeats go on, as they would
    with ThreadPoolExecutor(count) as threads:
        orders.send("ready")
        orders.recv()
        ended = list(threads.map(joined, handlers))
    orders.send(None if None in ended else max(at for at in ended if at is not None))
    with suppress(EOFError):
        orders.recv()  # until the owner hangs up, or ends this process


def _raise_limit() -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="*", default=[100, 1000, 5000, 10_000])
    parser.add_argument("--torchrun-nodes", type=int, nargs="*", default=[2, 8, 32, 100, 200])
    parser.add_argument("--repeat", type=int, default=3, help="the medians of so many are shown")
    parser.add_argument("--crowds", type=int, default=1, help="processes of simulated agents")
    parser.add_argument("--processes", type=int, default=2, help="processes of torchrun's rendezvous")
    parser.add_argument("--seconds", type=float, default=10, help="of rest in which CPU time is counted")
    parser.add_argument("--deadline", type=float, default=60, help="seconds after which a size is given up")
    parser.add_argument("--quick", action="store_true", help="small sizes, once: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.nodes, args.torchrun_nodes, args.repeat, args.seconds = [100, 1000], [2, 8], 1, 2
    if max(args.nodes, default=0) + 100 > _raise_limit():
        parser.error("more nodes than this user may have open files: raise the hard limit (ulimit -Hn)")
    print(f"{machine()}; medians of {args.repeat} (least to most)\n")
    _print_torchrun(args, _print_outlast(args))


def _print_outlast(args: argparse.Namespace) -> dict[int, float]:
    rows, formed = [], {}
    for nodes in sorted({*args.nodes, *args.torchrun_nodes}):
        runs = []
        for _ in range(args.repeat):
            seconds = args.seconds if nodes in args.nodes else 0.1
            runs.append(outlast(nodes, crowds=min(args.crowds, nodes), seconds=seconds, deadline=args.deadline))
        formed[nodes] = statistics.median(run.formed for run in runs)
        if nodes in args.nodes:
            shown = zip(zip(*runs, strict=True), (2, 2, 2, 2, 1, 0), strict=True)
            rows.append([f"{nodes:,}", *(_spread(values, digits) for values, digits in shown)])
    print("Outlast: from the first connect to the last assignment; from a connection's end to the last new assignment;")
    print(f"the coordinator at one heartbeat per agent and second, over {args.seconds:g} s\n")
    header = ["agents", "formed, s", "of it CPU, s", "re-formed, s", "of it CPU, s", "at rest, % of a core", "RSS, MiB"]
    print(table(header, rows), flush=True)
    return formed


def _print_torchrun(args: argparse.Namespace, formed: dict[int, float]) -> None:
    rows = []
    for nodes in args.torchrun_nodes:
        done: list[float] = []
        while len(done) < args.repeat:
            run = torchrun(nodes, processes=args.processes, deadline=args.deadline)
            if run is None:
                break
            done.append(run)
        if len(done) < args.repeat:
            rows.append([str(nodes), f"{formed[nodes]:.3f}", f"not within {args.deadline:g} s", "-"])
            break
        ratio = f"{statistics.median(done) / formed[nodes]:.0f}"
        rows.append([str(nodes), f"{formed[nodes]:.3f}", _spread(done, 2), ratio])
    header = ["nodes", "outlast formed, s", "torchrun's rendezvous, s", "times faster"]
    print("\n" + table(header, rows))


def _spread(values: Sequence[float], digits: int) -> str:
    middle = statistics.median(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
