"""The zygote: a process that has imported what workers import, and forks them.

Started by the agent with the workers' own command line and environment, and held up before the script (see
`startup/sitecustomize.py`). It is asked over a socket to import modules and to fork workers; it never runs a line of
the user's script itself. A forked worker leaves this loop for good, and goes on into the script.

It is only worth having while a fork of it is as good as a new process (see `fitness.py`). So it watches itself, and
says which module it was that put this in doubt.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import socket
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TextIO

from outlast.system import prctl
from outlast.worker import chaos, dump, gpu_count, last_words, lessons, probe, step_hook, store
from outlast.worker.appearance import Appearance
from outlast.worker.fitness import overshadowed, settle_ranks, unfit, unwatch_environment, watch_environment
from outlast.worker.import_watch import ImportWatch, LeftOut

MESSAGE = 64  # bytes: one word; what belongs to it lies in a file in memory
DESCRIPTORS = 250  # the kernel's limit for one message is 253
LINK = NEWS = 0  # places among the descriptors that come with a fork: a successor's own link, or the workers' news
GO, STREAMS, BIRTH = 1, 2, -1


@dataclass(frozen=True)
class Beginning:
    """What there was before the first import: what every Python has on its way to a script."""

    modules: Collection[str]
    environment: Mapping[str, str]


def main(descriptor: int, modules: Collection[str]) -> None:
    """Be the zygote until the agent is gone. Returns in forked workers alone, ready for their script."""
    link = socket.socket(fileno=descriptor)
    link.set_inheritable(False)
    appearance = Appearance.own()
    if appearance is not None:
        appearance.call_it("outlast: zygote")
    watch_environment()
    birth = serve(link, Beginning(modules, dict(os.environ)))
    if birth is None:
        os._exit(0)
    if birth["errand"]:
        if appearance is not None:
            appearance.call_it(f"outlast: {birth['errand']}")
        importlib.import_module(birth["errand"]).run()
        os._exit(0)
    if appearance is not None:
        appearance.show(birth["command"], os.environ)


def serve(link: socket.socket, beginning: Beginning) -> dict[str, Any] | None:
    """Do what the agent asks, until it is gone. In a forked worker, and only there, returns its birth.

    A successor goes on from here, too, with a link of its own.
    """
    while True:
        word, descriptors, _, _ = socket.recv_fds(link, MESSAGE, DESCRIPTORS)
        if not word:
            return None
        with os.fdopen(descriptors[0], "rb") as file:
            content = json.load(file)
        if word == b"import":
            say(link, learn(link, **content))
        elif word == b"warm":
            say(link, warm(**content))
        elif word == b"become":
            birth = become(link, content, list(descriptors[1:]), beginning)
            link.close()
            return birth
        elif word == b"succeed":
            own = fork_successor(link, content["agent"], list(descriptors[1:]))
            if own is not None:
                link.close()
                link = own
        else:
            birth = fork_all(link, content, list(descriptors[1:]), beginning)
            if birth is not None:
                link.close()
                return birth


def say(link: socket.socket, message: dict[str, Any]) -> None:
    link.send(json.dumps(message).encode())


def learn(link: socket.socket, modules: list[str], preload: list[str], beside: str) -> dict[str, Any]:
    """Import these; what cannot be imported is left out, and what makes a fork unsafe is named.

    Those of `preload` may be the user's own, and lie `beside` the script. Others are not looked for there.
    """
    began, failed = time.monotonic(), {}
    with ImportWatch() as watch, ExitStack() as stack:
        stack.enter_context(gpu_count.foretold())  # torch may have been imported before
        for name in modules:
            if name in sys.modules:
                continue
            say(link, {"importing": name})  # should this be the last word, it was this one that killed us
            if why := attempt(name, beside if name in preload else ""):
                failed[name] = why
            if name == "torch":
                stack.enter_context(gpu_count.foretold())
    gc.collect()
    gc.freeze()  # objects that nobody touches stay shared with the workers
    return {"left_out": watch.left_out, "failed": failed, "took": time.monotonic() - began}


def attempt(name: str, beside: str) -> str:
    """Import a module; returns why that failed."""
    path = list(sys.path)
    if beside:
        sys.path.insert(0, beside)
    try:
        importlib.import_module(name)
    except LeftOut:
        return ""
    except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever a foreign module raises when it is imported)
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        if beside:
            sys.path[:] = path
    return ""


def fork_all(
    link: socket.socket, births: dict[str, Any], descriptors: list[int], beginning: Beginning
) -> dict[str, Any] | None:
    """Fork a worker for each birth, as children of the agent. Returns the birth in each worker, None here."""
    doubt, shadow, pids = unfit(), overshadowed(births["beside"], beginning.modules), []
    for birth in births["workers"] if not (doubt or shadow) else ():
        pid = fork_for(births["agent"], descriptors[GO])
        if pid == 0:
            be_born(births, birth, descriptors, beginning)
            return dict(birth)
        pids.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    say(link, {"doubt": doubt, "overshadowed": shadow, "pids": pids})
    return None


def warm(device: int, modules: list[str], compiler: bool) -> dict[str, Any]:
    """Make the context on a GPU, and have what a first step loads loaded. No fork of this process is any good then.

    So `modules` that a zygote has to leave out are imported now; and the `compiler` is used, if the workers do.
    """
    import torch

    if not torch.cuda.is_available():
        return {"doubt": "torch sees no CUDA device"}
    import torch.distributed

    began = time.monotonic()
    with torch.cuda.device(device):
        layer = torch.nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters())
        layer(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        if torch.distributed.is_nccl_available():
            # What NCCL learns of the machine it keeps, whatever the group: most of what a first collective takes.
            torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
            torch.distributed.all_reduce(torch.ones(1, device="cuda"))
            torch.distributed.destroy_process_group()
        for name in modules:
            attempt(name, "")
        if compiler:
            torch.compile(layer)(torch.randn(32, 64, device="cuda")).square().mean().backward()
            torch.compiler.reset()
        torch.cuda.synchronize()
        del layer, optimizer
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return {"doubt": "", "took": time.monotonic() - began}


def become(
    link: socket.socket, births: dict[str, Any], descriptors: list[int], beginning: Beginning
) -> dict[str, Any] | None:
    """Be the worker of this birth from now on; None if that would not be as good as a new process."""
    shadow = overshadowed(births["beside"], beginning.modules)
    say(link, {"doubt": "", "overshadowed": shadow, "pids": [] if shadow else [os.getpid()]})
    if shadow or not os.read(descriptors[GO], 1):
        return None
    birth = births["workers"][0]
    be_born(births, birth, descriptors, beginning)
    return dict(birth)


def fork_successor(link: socket.socket, agent: int, descriptors: list[int]) -> socket.socket | None:
    """Fork a zygote that has all that this one has. Returns its link in that process, None here."""
    doubt, pids = unfit(), []
    if not doubt:
        pid = fork_for(agent, descriptors[GO])
        if pid == 0:
            os.setsid()
            own = socket.socket(fileno=descriptors.pop(LINK))
            be_bound(agent, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            return own
        pids.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    say(link, {"doubt": doubt, "pids": pids})
    return None


def fork_for(agent: int, go: int) -> int:
    """Fork a process that belongs to the agent: 0 in that process, once the agent has heard of it; its pid here.

    A process between the two forks it and ends; the orphan goes to the nearest subreaper, which is the agent. So
    the agent can wait for it, and the kernel kills it when the agent dies.
    """
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid:
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.close(reading)
        os.close(writing)
        if not os.read(go, 1) or os.getppid() != agent:
            os._exit(1)  # the agent went on without us, or has died
        return 0
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pid = int(pipe.read())
    os.waitpid(between, 0)  # from now on the worker is the agent's
    return pid


def grown(before: Mapping[str, str], environment: dict[str, str]) -> dict[str, str]:
    """A worker's environment, with what imports have changed since: the worker's own import would have, too."""
    now = dict(os.environ)
    changed = [name for name in {*before, *now} if before.get(name) != now.get(name)]
    for name in changed:
        if environment.get(name) == before.get(name):
            environment.pop(name, None)
            environment |= {name: now[name]} if name in now else {}
    return environment


def be_born(births: dict[str, Any], birth: dict[str, Any], descriptors: list[int], beginning: Beginning) -> None:
    """Make this process what a new one would be: its own session, environment, arguments, streams, random numbers."""
    birth["environment"] = grown(beginning.environment, {**births["environment"], **birth["environment"]})
    birth["errand"] = births["errand"]
    if os.getsid(0) != os.getpid():  # a spare has had its own since it was forked
        os.setsid()
    for stream, index in ((sys.stdout, birth["stdout"]), (sys.stderr, birth["stderr"])):
        os.dup2(descriptors[STREAMS + index], stream.fileno())
        renew(stream)
    be_bound(births["agent"], descriptors)
    unwatch_environment()
    os.environ.clear()
    os.environ.update(birth["environment"])
    os.chdir(births["directory"])
    sys.argv[1:] = birth["command"][len(sys.orig_argv) - len(sys.argv) + 1 :]
    sys.orig_argv[1:] = birth["command"][1:]
    os.dup2(descriptors[NEWS], births["news"], inheritable=False)
    for descriptor in descriptors:
        os.close(descriptor)
    importlib.invalidate_caches()
    draw_anew()
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()
    settle_ranks()
    if birth["errand"]:
        return
    store.await_before_asking()
    dump.install()
    last_words.install()
    step_hook.install()
    probe.install()
    chaos.install()
    lessons.report_later(births["news"], known=frozenset(sys.modules))


def be_bound(agent: int, descriptors: list[int]) -> None:
    """Tell the agent that this process is one of its own now, and die with it."""
    os.close(descriptors.pop(BIRTH))  # the agent waits for this
    prctl.die_with(agent)


def draw_anew() -> None:
    """Take from chance again what these modules took from it when they were imported, as `random` does by itself."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(sys.modules.get("torch"), "default_generator"):
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def renew(stream: TextIO) -> None:
    """Let a standard stream forget what it knew of the file that its descriptor led to before.

    The object stays the same, as loggers may have it.
    """
    raw = io.FileIO(stream.fileno(), "wb", closefd=False)  # unbuffered, as -u makes it
    raw.name = stream.name
    stream.__init__(  # type: ignore[misc]
        raw, stream.encoding, stream.errors, "\n", line_buffering=stream.line_buffering, write_through=True
    )
