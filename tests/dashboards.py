"""Simulated jobs for the dashboard, of any size. `python tests/dashboards.py --nodes 1250` serves one."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import anyio
from anyio.from_thread import start_blocking_portal

from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.dashboard.access import Access
from outlast.dashboard.server import PageSettings, listen, serve
from outlast.events import events, reasons
from outlast.events.numbered import NumberedEvent
from outlast.observe import EventGap
from outlast.protocol.logs import LogsTold
from outlast.protocol.observers import Detail
from outlast.protocol.paces import Pace
from outlast.protocol.requests import Answer
from outlast.protocol.views import ExclusionView, JobView, NodeView, SnapshotView

STEP = 0.82  # seconds
SECTIONS = {"forward": 0.31, "backward": 0.38, "optimizer": 0.07, "data": 0.04}


class SimulatedJob:
    """A job with a past of two hours. It goes on for as long as somebody looks."""

    def __init__(
        self, nodes: int = 4, workers: int = 1, *, now: float = 1_790_000_000.0, slow: dict[int, float] | None = None
    ) -> None:
        self.random = random.Random(1)
        self.names = [f"gpu-{number:04d}" for number in range(nodes)]
        self.workers = workers
        self.told: list[NumberedEvent] = []
        self.generation = 0
        self.step = 0
        self.began = now - 6680
        self.time = self.began
        self.made = 0
        self.asked: list[tuple[str, str]] = []
        self.lost = ""  # why nobody answers
        ranks = nodes * workers
        some = {1 % ranks: 1.9} if ranks <= 8 else {4711 % ranks: 1.9, 5003 % ranks: 1.3}
        self.slow = some if slow is None else slow
        self._past()

    def tell(self, event: events.JobEvent, after: float = 0.0) -> None:
        """The next event."""
        self.time += after
        term = 1 if self.generation < 3 else 2
        self.told.append(NumberedEvent(len(self.told) + 1 + (term - 1) * 1_000_000, self.time, term, event))

    def form(self, nodes: list[str], restarts: int = 0, after: float = 1.0) -> None:
        self.generation += 1
        ranks = len(nodes) * self.workers
        spares = len(self.names) - len(nodes)
        formed = events.GenerationFormed(
            generation=self.generation,
            nodes=tuple(nodes),
            ranks=ranks,
            spares=spares,
            restarts=restarts,
            restore_step=self.step or None,
        )
        self.tell(formed, after)
        self.tell(events.TrainingBegan(generation=self.generation, step=self.step + 1, restore=0.2), 1.8)

    def train(self, seconds: float, lost: int = 0) -> None:
        """Steps are made; the last ones are in no snapshot."""
        for _ in range(int(seconds // 60)):
            self.step += round(60 / STEP * self.random.uniform(0.96, 1.0))
            self.tell(events.TrainingProgress(generation=self.generation, step=self.step, checkpoint=0.1), 60)
        self.time += seconds % 60
        self.made, self.step = self.step, self.step - lost

    def gone(self) -> None:
        self.tell(events.WorkersGone(generation=self.generation, step=self.made, ago=0.3), 0.3)

    def failed(self, rank: int, cause: str, title: str) -> reasons.FailedRank:
        node = self.names[rank // self.workers]
        return reasons.FailedRank(node, rank, 1, "RuntimeError", cause=cause, title=title, step=self.step)

    def _past(self) -> None:
        self.tell(events.JobBegan(generation=0, least=len(self.names), most=len(self.names), ago=0.5))
        for name in self.names[:200]:
            self.tell(events.NodeJoined(generation=0, node=name, workers=self.workers), 0.05)
        self.form(self.names, after=20)
        self._crash()
        self._lose_a_node()
        self._hang()
        self._straggle()

    def _crash(self) -> None:
        self.train(1100, lost=38)
        failure = self.failed(2 % (len(self.names) * self.workers), "out-of-memory", "CUDA out of memory")
        self.tell(events.GenerationEnding(generation=self.generation, reason=failure, ago=0.2))
        self.gone()
        self.tell(events.WorkerFailed(generation=self.generation, failure=failure, followers=3), 0.4)
        self.tell(events.Restarting(generation=self.generation, number=1, allowed=10, failure=failure), 0.01)
        self.form(self.names, 1)

    def _lose_a_node(self) -> None:
        self.train(1500)
        lost = self.names[-1]
        self.tell(events.NodeLost(generation=self.generation, node=lost, how="its connection broke", told=True))
        ending = reasons.LostNode(lost, "its connection broke (no answer for 3 s)")
        self.tell(events.GenerationEnding(generation=self.generation, reason=ending, ago=3.0))
        self.gone()
        self.form(self.names[:-1] or self.names, 1, 0.9)
        self.train(700)
        self.tell(events.CoordinatorTookOver(generation=self.generation, term=2, nodes=len(self.names)))
        self.tell(events.NodeJoined(generation=self.generation, node=lost, workers=self.workers), 4)
        joined = reasons.JoinedNodes((lost,))
        self.tell(events.PlannedChange(generation=self.generation, changes=(joined,)), 0.2)
        planned = reasons.PlannedEnd((joined,), reasons.Saved.ALL, self.step)
        self.tell(events.GenerationEnding(generation=self.generation, reason=planned), 1.2)
        self.gone()
        self.form(self.names, 1, 0.8)

    def _hang(self) -> None:
        self.train(1800, lost=61)
        rank = 3 % (len(self.names) * self.workers)
        node = self.names[rank // self.workers]
        where = "DataLoader.__next__ at train.py:81"
        sentence = f"rank {rank} on {node} blocks the others: stuck in {where}; 7 ranks wait in all_reduce"
        hang = events.HangNamed(
            generation=self.generation,
            ranks=(rank,),
            nodes=(node,),
            kind="alone",
            where=where,
            sentence=sentence,
            ago=30,
        )
        self.tell(hang, 30)
        failure = reasons.FailedRank(node, rank, -9, hung="in section 'step' for 30 s", cause="hang", step=self.step)
        self.tell(events.GenerationEnding(generation=self.generation, reason=failure), 0.3)
        self.gone()
        self.tell(events.Restarting(generation=self.generation, number=2, allowed=10, failure=failure), 0.1)
        self.tell(events.NodeExcluded(generation=self.generation, node="gpu-9001", why="NVLink errors", seconds=3600))
        self.form(self.names, 2)

    def _straggle(self) -> None:
        self.train(1500)
        if not self.slow:
            return
        rank = next(iter(self.slow))
        node = self.names[rank // self.workers]
        self.tell(
            events.StragglerChanged(
                generation=self.generation,
                node=node,
                ranks=(rank,),
                section="backward",
                factor=1.9,
                since=self.step,
                over=None,
                sentence=f"rank {rank} on {node} is 1.9 times slower than the median rank, in section 'backward'",
                excess=0.02,
            )
        )

    @property
    def rows(self) -> list[NumberedEvent]:
        """The events that people are shown."""
        return [each for each in self.told if not isinstance(each.event, events.TrainingProgress)]

    # -- as an observer sees it

    async def view(self, detail: Detail = Detail.RANKS) -> JobView:
        if self.lost:
            raise CoordinatorUnreachable(self.lost)
        now = time.time()
        self.step += 1
        return JobView(
            job="llama-70b",
            run="run-1",
            term=2,
            phase="running",
            generation=self.generation,
            acting=True,
            seconds=now - self.began,
            least=max(1, len(self.names) - 2),
            most=len(self.names),
            nodes=tuple(self._node(at, name) for at, name in enumerate(self.names)) if detail == Detail.RANKS else (),
            spares=0,
            restarts=2,
            allowed=10,
            generations=self.generation,
            excluded={"gpu-9001": ExclusionView("NVLink errors", 2400.0)},
            snapshot=SnapshotView(self.step - 40, now - 33),
            last_fault=self.failed(3 % len(self.names), "hang", "a rank hung"),
            time=now,
            event=self.told[-1].number,
            wanted=len(self.names),
            members=len(self.names),
            here=len(self.names),
            ranks=len(self.names) * self.workers,
            progress=self._pace(0),
        )

    def _node(self, at: int, name: str) -> NodeView:
        first = at * self.workers
        return NodeView(
            node=name,
            name=name,
            state="running",
            workers=self.workers,
            connected=True,
            member=True,
            ready=False,
            group_rank=at,
            first_rank=first,
            paces=tuple(self._pace(first + local) for local in range(self.workers)),
        )

    def _pace(self, rank: int) -> Pace:
        factor = self.slow.get(rank, 1.0) * (1 + self.random.random() * 0.04)
        sections = {name: round(seconds * factor, 4) for name, seconds in SECTIONS.items()}
        return Pace(rank, self.step - 1, self.step, STEP * factor, sections, busy=STEP * 0.6, waited="backward")

    async def events(self, after: int, *, run: str = "") -> AsyncIterator[NumberedEvent | EventGap]:
        assert run in ("", "run-1")
        while True:
            new = [each for each in self.told if each.number > after]
            for each in new:
                yield each
                after = each.number
                if isinstance(each.event, events.JobOver):
                    return
            await anyio.sleep(0.02)

    async def ask_logs(self, questions: Mapping[str, bytes]) -> LogsTold:  # noqa: ARG002
        raise CoordinatorUnreachable("a simulated job has no logs")

    async def drain(self, node: str) -> Answer:
        return self._asked("drain", node)

    async def restart(self) -> Answer:
        return self._asked("restart", "")

    async def stop(self) -> Answer:
        return self._asked("stop", "")

    def _asked(self, what: str, subject: str) -> Answer:
        self.asked.append((what, subject))
        return Answer(True, f"{what} {subject}".strip())


@contextmanager
def serving(job: SimulatedJob, *, token: str = "", log_dir: Path | None = None, actions: bool = False) -> Iterator[str]:
    """A real server of this page, in a thread; its address."""
    listening, ready = listen("127.0.0.1", 0), Event()
    settings = PageSettings(access=Access(token), log_dir=log_dir, actions=actions)
    with start_blocking_portal() as portal, listening:
        task = portal.start_task_soon(serve, job, listening, settings, ready.set)
        try:
            assert ready.wait(60), task
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--port", type=int, default=8380)
    parser.add_argument("--token", default="")
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--allow-actions", action="store_true")
    args = parser.parse_args()
    job = SimulatedJob(args.nodes, args.workers, now=time.time())
    listening = listen("127.0.0.1", args.port)
    settings = PageSettings(access=Access(args.token), log_dir=args.log_dir, actions=args.allow_actions)
    anyio.run(serve, job, listening, settings, lambda: print(listening.getsockname()[1], flush=True))


if __name__ == "__main__":
    main()
