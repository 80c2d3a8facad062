"""Workers-to-be that have a CUDA context already: what no fork can bring along.

Each is a successor of the zygote, one for each local rank, which goes on to use its GPU. It cannot be forked any more;
but it can become the next worker itself. It costs the memory of a context on the GPU, so it has to be asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from outlast.agent.warm_start.zygote_process import UnfitZygote, ZygoteProcess

log = logging.getLogger("agent")

FAILURES = 3  # in a row; more is not worth the trouble
OF_THE_GPU = ("CUDA_", "NVIDIA_", "NCCL_", "PYTORCH_", "TORCH_")  # variables that are read when it is first used


class Spares:
    """One spare for each local rank, as soon as they are ready. Made within a running event loop.

    Those of a zygote that knows more take the place of ready ones when they are ready themselves, not before: a
    restart may come at any time.
    """

    def __init__(self, count: int, environment: Mapping[str, str]) -> None:
        self._count = count
        self._environment = of_the_gpu(environment)
        self._loop = asyncio.get_running_loop()
        self._ready: list[ZygoteProcess] = []  # all of them, or none
        self._coming: dict[ZygoteProcess, bool] = {}  # whether it is warm
        self._origin: ZygoteProcess | None = None  # the zygote of the newest
        self._failures = 0

    def stock(self, zygote: ZygoteProcess, modules: Sequence[str] = (), *, compiler: bool = False) -> None:
        """Have some of this zygote, which import `modules` and use the `compiler` on top."""
        if self._failures >= FAILURES or (self._origin is zygote and (self._coming or self._ready)):
            return
        self._end(list(self._coming))
        self._origin = zygote
        try:
            for device in range(self._count):
                spare = zygote.successor()
                self._coming[spare] = False
                self._loop.add_reader(spare.link, self._hear, spare)
                spare.warm({"device": device, "modules": list(modules), "compiler": compiler})
        except UnfitZygote as doubt:
            self._failed(str(doubt))

    def take(self, environments: list[Mapping[str, str]]) -> list[ZygoteProcess]:
        """All of them, if they are ready and fit for workers with these environments; they are the caller's now."""
        if len(environments) != len(self._ready):
            return []
        for environment in environments:
            if others := sorted(dict(of_the_gpu(environment).items() ^ self._environment.items())):
                log.warning("the spare workers are not used: they were made with another %s", ", ".join(others))
                return []
        spares, self._ready = self._ready, []
        for spare in spares:
            self._loop.remove_reader(spare.link)
        return spares

    def close(self) -> None:
        self._end([*self._ready, *self._coming])

    def _end(self, spares: list[ZygoteProcess]) -> None:
        for spare in spares:
            self._loop.remove_reader(spare.link)
            spare.end()
            self._coming.pop(spare, None)
        self._ready = [spare for spare in self._ready if spare not in spares]

    def _hear(self, spare: ZygoteProcess) -> None:
        message = spare.hear()
        if message is None or message.get("doubt"):
            self._failed(message["doubt"] if message else "one of them has ended")
        elif message and spare in self._coming:
            self._coming[spare] = True
            if all(self._coming.values()) and len(self._coming) == self._count:
                self._end(self._ready)
                self._ready, self._coming, self._failures = list(self._coming), {}, 0
                log.debug("the spare workers are ready, after %.1f s on the GPU", message["took"])

    def _failed(self, why: str) -> None:
        self.close()
        self._failures += 1
        if self._failures == FAILURES:
            log.warning("no spare workers with a GPU (--warm-cuda), restarts will be slower: %s", why)


def of_the_gpu(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment decides how a process sees its GPU."""
    return {name: value for name, value in environment.items() if name.startswith(OF_THE_GPU)}
