"""A node's part in checks, and nothing else of a job: probes come in as lines of JSON, findings go out the same way.

What it runs is what an agent runs: the checker, and a zygote that stays warm from one check to the next.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from outlast.agent.monitoring.checker import Checker
from outlast.agent.processes.workers import be_subreaper
from outlast.agent.warm_start.zygote import Zygote
from outlast.launch import Endpoint, Launch
from outlast.protocol.checks import Findings, Probe
from outlast.settings.settings import Settings
from outlast.workloads.torch_job import TorchWorkload

COMMAND = (sys.executable, "-u", "-c", "pass")


async def serve(nproc: int) -> None:
    be_subreaper()  # as an agent is: what a zygote forks is to be a child of this process
    launch = Launch(
        job="check",
        min_nodes=1,
        max_nodes=1,
        nproc=nproc,
        role="check",
        command=COMMAND,
        entrypoint="check",
        endpoint=Endpoint("127.0.0.1", 0),
    )
    zygote = Zygote(
        COMMAND, TorchWorkload(launch, Settings()).shared_environment(os.environ), preload=(), patience=10.0
    )
    checker = Checker(launch, Settings(accelerator="cpu"), zygote=lambda: zygote, found=tell)
    zygote.wake()
    await zygote.ready()
    print("ready", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        checker.begin(msgspec.json.decode(line, type=Probe))
    await checker.stop()
    zygote.close()


def tell(findings: Findings) -> None:
    print(f"found {msgspec.json.encode(findings).decode()}", flush=True)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
