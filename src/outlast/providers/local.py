"""This machine: a job of several nodes has an agent for each of them here."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from outlast.jobs.command import run_arguments
from outlast.jobs.spec import JobSpec
from outlast.providers.provider import JobProvider
from outlast.system import own_process

FAILED = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LocalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Commands to start beside each other, each an agent."""

    directory: str
    env: dict[str, str]
    commands: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """The same as shell lines."""
        lines = [f"cd {shlex.quote(self.directory)}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        agents = [shlex.join(("outlast", *command)) for command in self.commands]
        if len(agents) == 1:
            return "\n".join([*lines, *agents])
        return "\n".join([*lines, *(f"{agent} &" for agent in agents), "wait"])


class LocalProvider(JobProvider[LocalRequest]):
    """Runs a job on this machine until it has ended. `port`: where several nodes meet."""

    def __init__(self, port: int) -> None:
        self._port = port

    def plan(self, spec: JobSpec) -> LocalRequest:
        """One command per node, spares included."""
        if spec.most_nodes == 1:
            commands = [run_arguments(spec, "--standalone")]
        else:
            meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._port}", f"--rdzv-id={spec.name}")
            names = [f"--ft-node-name=node-{index}" for index in range(spec.most_nodes)]
            commands = [run_arguments(spec, *meeting, name) for name in names]
        return LocalRequest(directory=spec.directory, env=spec.env, commands=tuple(map(tuple, commands)))

    def submit(self, request: LocalRequest) -> int:
        """Run the job here, and pass signals on to its agents."""
        if not Path(request.directory).is_dir():
            raise ValueError(f"there is no directory {request.directory}; correct `directory` in the job file")
        environ = {**os.environ, **request.env}
        agents: list[subprocess.Popen[bytes]] = []

        def pass_on(number: int, _: FrameType | None) -> None:
            for agent in agents:
                agent.send_signal(number)

        handlers = {number: signal.signal(number, pass_on) for number in SIGNALS}
        try:
            agents.extend(_start(command, request.directory, environ) for command in request.commands)
            return _outcome([agent.wait() for agent in agents])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _start(command: Sequence[str], directory: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # In a session of its own: what a terminal sends comes through us, once.
    argv = own_process.command("outlast.cli:main", *command)
    return subprocess.Popen(argv, cwd=directory, env=environ, start_new_session=True)


def _outcome(codes: Sequence[int]) -> int:
    """The job's exit code: a node that was lost on the way does not count when the others finished.

    >>> _outcome([0, -9, 0]), _outcome([-9, 93]), _outcome([-9, -15])
    (0, 93, 1)
    """
    ended = [code for code in codes if code >= 0]
    if 0 in ended:
        return 0
    return max(ended, default=FAILED)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
