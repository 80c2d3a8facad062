"""The zygote: a process that has imported what workers import, and forks them.

`python -u -m outlast.worker.zygote DESCRIPTOR PADDING`, started by the agent in the workers' interpreter and
environment. It is asked over a socket to import modules and to fork workers; it never runs a line of the user's
script itself. A forked worker leaves this loop for good.

It is only worth having while a fork of it is as good as a new process. So it watches itself: a module that leaves a
thread behind which survives a fork, or opens a GPU, makes it unfit, and it says which one that was.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from outlast.worker import lessons, script

PR_SET_PDEATHSIG = 1
SETTABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
MESSAGE = 64  # bytes: one word; what belongs to it lies in a file in memory
DESCRIPTORS = 250  # the kernel's limit for one message is 253

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    worker = serve(link)
    if worker is not None:
        link.close()
        script.become(worker)


def serve(link: socket.socket) -> list[str] | None:
    """Do what the agent asks, until it is gone. In a forked worker, and only there, returns its command."""
    while True:
        word, descriptors, _, _ = socket.recv_fds(link, MESSAGE, DESCRIPTORS)
        if not word:
            return None
        with os.fdopen(descriptors[0], "rb") as file:
            content = json.load(file)
        if word == b"import":
            say(link, learn(link, content))
            continue
        command = fork_all(link, content, list(descriptors[1:]))
        if command is not None:
            return command


def say(link: socket.socket, message: dict[str, Any]) -> None:
    link.send(json.dumps(message).encode())


def learn(link: socket.socket, modules: list[str]) -> dict[str, Any]:
    """Import these; what cannot be imported is left out, and what makes a fork unsafe is named."""
    began, failed, doubt, package = time.monotonic(), {}, "", ""
    for name in modules:
        if name in sys.modules:
            continue
        if name.partition(".")[0] != package:
            package = name.partition(".")[0]
            say(link, {"importing": package})  # should this be the last word, it was this one that killed us
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  (whatever a foreign module raises when it is imported)
            failed[name] = f"{type(error).__name__}: {error}"[:200]
        doubt = unfit()
        if doubt:
            break
    gc.collect()
    gc.freeze()  # objects that nobody touches stay shared with the workers
    culprit = name if doubt else ""
    return {"ready": not doubt, "doubt": doubt, "culprit": culprit, "failed": failed, "took": time.monotonic() - began}


def unfit() -> str:
    """Why a fork of this process would not be as good as a new one; "" if it would."""
    if threads() > 1:
        # Libraries that know about forks (OpenBLAS) end their threads before one, and start them again when needed.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        if threads() > 1:
            return "it left a thread running"
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/davinci")):
            return "it opened an accelerator"
    return ""


def threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def fork_all(link: socket.socket, births: dict[str, Any], descriptors: list[int]) -> list[str] | None:
    """Fork a worker for each birth, as children of the agent. Returns the command in each worker, None here."""
    pids = []
    doubt = unfit()
    if not doubt:
        for birth in births["workers"]:
            pid = fork_for(births["agent"])
            if pid == 0:
                be_born(births, birth, descriptors)
                command: list[str] = birth["command"]
                return command
            pids.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    say(link, {"doubt": doubt} if doubt else {"pids": pids})
    return None


def fork_for(agent: int) -> int:
    """Fork a process that belongs to the agent: 0 in that process, its pid here.

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
        while os.getppid() != agent:
            if os.getppid() == 1:
                os._exit(1)  # the agent has died
            time.sleep(0.0002)
        return 0
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pid = int(pipe.read())
    os.waitpid(between, 0)  # from now on the worker is the agent's
    return pid


def be_born(births: dict[str, Any], birth: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process what a new one would be: its own session, environment, streams, signals and random numbers."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != births["agent"]:
        os._exit(1)
    for number in SETTABLE:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as every Python begins
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update({**births["environment"], **birth["environment"]})
    os.chdir(births["directory"])
    news = descriptors[births["news"]]
    for target, index in ((1, birth["stdout"]), (2, birth["stderr"])):
        os.dup2(descriptors[index], target)
    for descriptor in descriptors:
        if descriptor != news:
            os.close(descriptor)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # Python's own random does this by itself
    lessons.settle_ranks()
    lessons.report_later(news)
    gc.enable()


if __name__ == "__main__":
    main()
