"""Runs one scenario: the agents of a job on this machine, until they have ended or are out of time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outlast.events.events import JobOver
from outlast.ledger.reading import recordings
from outlast.providers.local import free_port
from outlast.rehearsal.history import RunHistory, history_of
from outlast.rehearsal.records import read_lives
from outlast.rehearsal.results import RunEnd, RunResult
from outlast.rehearsal.scenarios import Scenario
from outlast.system import own_process

PAUSE = 0.1  # seconds between two looks
GRACE = 20.0  # seconds to end when asked to


class RehearsalJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is run in every scenario. `{scratch}` in arguments becomes the directory of the scenario."""

    script: str
    arguments: tuple[str, ...]
    nodes: int
    nproc: int
    shutdown: int  # seconds between SIGTERM and SIGKILL
    links: tuple[Path, ...] = ()
    heartbeat: float = 0.0  # seconds without a step after which a rank hangs; 0: not known yet


class RehearsalRunner:
    """Runs scenarios, each in a directory of its own below `place`."""

    def __init__(self, job: RehearsalJob, place: Path) -> None:
        self.job = job
        self._place = place

    def run(self, scenario: Scenario, *, limit: float, steps: int | None = None) -> RunResult:
        """Run it, for `limit` seconds at most; with `steps`, that is all it has to do."""
        place = self._place / scenario.name
        scratch, probe = place / "scratch", place / "probe"
        for each in (scratch, probe):
            each.mkdir(parents=True)
        for link in self.job.links:
            (scratch / link.name).symlink_to(link)
        faults = {"faults": scenario.faults, "save_delay": scenario.save_delay}
        (probe / "plan.json").write_bytes(msgspec.json.encode(faults))
        agents = _Agents(self._command(scenario, place), scratch, {"OUTLAST_PROBE": str(probe)}, place / "console")
        began = time.monotonic()
        drained = None
        try:
            agents.start(*(f"node-{index}" for index in range(self.job.nodes)))
            end = self._follow(scenario, agents, probe, began + limit, steps)
            drained = _drained(history_of(read_lives(probe)), agents) if scenario.least else None
        finally:
            agents.stop()
        history = history_of(read_lives(probe))
        over = _over(place / "events.jsonl")
        return RunResult(
            scenario=scenario,
            history=history,
            end=end,
            reason="" if over is None or over.success else over.reason,
            seconds=time.monotonic() - began,
            restarts=over.restarts if over is not None else 0,
            drain_seconds=drained,
        )

    def _follow(self, scenario: Scenario, agents: _Agents, probe: Path, deadline: float, steps: int | None) -> RunEnd:
        replaced = False
        while time.monotonic() < deadline:
            codes = agents.poll()
            if scenario.replace and not replaced and any(code not in (None, 0) for code in codes.values()):
                agents.start("node-again")
                replaced = True
                continue
            if all(code is not None for code in codes.values()):
                return RunEnd.FINISHED if 0 in codes.values() else RunEnd.FAILED
            if steps is not None and history_of(read_lives(probe)).last >= steps:
                return RunEnd.FINISHED
            time.sleep(PAUSE)
        return RunEnd.TIMED_OUT

    def _command(self, scenario: Scenario, place: Path) -> list[str]:
        job = self.job
        least = scenario.least or job.nodes
        watch = [f"--ft-rank-heartbeat-timeout={job.heartbeat:g}"] if job.heartbeat else []
        return [
            *("run", f"--nnodes={least}:{job.nodes}", f"--nproc-per-node={job.nproc}", "--max-restarts=4"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=rehearsal"),
            *("--ft-use-infra-group-rank=false", "--node-timeout=30", "--ft-in-place-timeout=0", "--ft-crash-loop=3"),
            *("--ft-last-call=5", f"--shutdown-timeout={job.shutdown}", f"--ft-events={place / 'events.jsonl'}"),
            *watch,
            *(f"--log-dir={place / 'logs'}", "--redirects=3"),
            job.script,
            *(argument.replace("{scratch}", str(place / "scratch")) for argument in job.arguments),
        ]


class _Agents:
    """The nodes of one run."""

    def __init__(self, command: Sequence[str], directory: Path, environ: dict[str, str], console: Path) -> None:
        self._command = command
        self._directory = directory
        self._environ = {**os.environ, **environ}
        self._console = console
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ended: dict[str, float] = {}  # when, in seconds since 1970

    def start(self, *names: str) -> None:
        for name in names:
            flag, *rest = self._command
            argv = own_process.command("outlast.cli:main", flag, f"--ft-node-name={name}", *rest)
            with self._console.open("ab") as console:
                self.running[name] = subprocess.Popen(
                    argv,
                    cwd=self._directory,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # what a terminal sends comes through us
                )

    def poll(self) -> dict[str, int | None]:
        """The exit codes; None: it runs."""
        codes = {name: agent.poll() for name, agent in self.running.items()}
        for name, code in codes.items():
            if code is not None:
                self.ended.setdefault(name, time.time())
        return codes

    def stop(self) -> None:
        """End what still runs, and await it: first as a person would, then for certain."""
        for number in (signal.SIGINT, signal.SIGKILL):
            left = [agent for agent in self.running.values() if agent.poll() is None]
            for agent in left:
                agent.send_signal(number)
            deadline = time.monotonic() + GRACE
            for agent in left:
                try:
                    agent.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue


def _drained(history: RunHistory, agents: _Agents) -> float | None:
    """Seconds from the preemption of a node to the end of its agent."""
    asked = [fault.time for fault, _ in history.faults() if fault.what == "preempt"]
    return min(agents.ended.values()) - asked[0] if asked and agents.ended else None


def _over(path: Path) -> JobOver | None:
    """The last word of the job."""
    if not path.exists():
        return None
    events = [each.event for run in recordings([path.read_bytes()]) for each in run.events]
    return next((event for event in reversed(events) if isinstance(event, JobOver)), None)
