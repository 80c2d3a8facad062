"""How far training has come on all nodes: from what each tells to one event for all."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.events.events import TrainingBegan, TrainingProgress, WorkersGone
from outlast.protocol.paces import Training

EVERY = 60.0  # seconds from one event to the next
AGAIN = 0.01  # seconds between two first steps: less is what clocks differ by


class JobProgress:
    """What the members of the newest generation have told. Constant work per report, but for the events.

    >>> progress = JobProgress()
    >>> first = Training(1, first=5, first_at=7.0, last=5, last_at=7.0)
    >>> progress.hear("a-1", first, name="a", behind=2.0, members=1, now=9.5)
    TrainingBegan(step=None, ago=0.5, restore=0.0, slowest='a', generation=1)
    """

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._told: dict[str, tuple[Training, float]] = {}  # with the coordinator's clock less that of the node
        self._names: dict[str, str] = {}
        self._due: float | None = None  # None: not all have made a step

    def hear(
        self, node: str, training: Training, *, name: str, behind: float, members: int, now: float
    ) -> TrainingBegan | TrainingProgress | None:
        """A member tells how far it has come. What there is to be said then."""
        if training.generation != self._generation:
            self._begin(training.generation)
        if node in self._told and training.first_at > self._told[node][0].first_at + AGAIN:
            self._due = None  # a task that had trained was started again, and has made its first step
        self._told[node], self._names[node] = (training, behind), name
        if self._due is None and len(self._told) == members:
            self._due = now + EVERY
            return self._began(now)
        if self._due is not None and now >= self._due:
            self._due = now + EVERY
            last, ago, checkpoint, data = _summed(list(self._told.values()), now)
            return TrainingProgress(generation=self._generation, step=last, ago=ago, checkpoint=checkpoint, data=data)
        return None

    def _began(self, now: float) -> TrainingBegan:
        at = {node: training.first_at + behind for node, (training, behind) in self._told.items()}
        slowest = max(at, key=lambda node: at[node])
        each = [training for training, _ in self._told.values()]
        return TrainingBegan(
            generation=self._generation,
            step=min(training.first for training in each) if all(training.numbered for training in each) else None,
            ago=max(0.0, now - at[slowest]),
            restore=sum(training.restore for training in each) / len(each),
            slowest=self._names[slowest],
        )


def workers_gone(generation: int, told: Sequence[tuple[Training | None, float]], now: float) -> WorkersGone:
    """What the members said last whose workers have ended: how far they came, and how their clocks differ."""
    known = [(each, behind) for each, behind in told if each is not None and each.generation == generation]
    if not known:
        return WorkersGone(generation=generation)
    last, ago, checkpoint, data = _summed(known, now)
    return WorkersGone(generation=generation, step=last, ago=ago, checkpoint=checkpoint, data=data)


def _summed(told: Sequence[tuple[Training, float]], now: float) -> tuple[int, float, float, float]:
    """The furthest step and how long ago it was, and the seconds of waiting, on average."""
    furthest, behind = max(told, key=lambda each: (each[0].last, each[0].last_at))
    ago = max(0.0, now - furthest.last_at - behind)
    count = len(told)
    checkpoint, data = (sum(getattr(each, name) for each, _ in told) / count for name in ("checkpoint", "data"))
    return furthest.last, ago, checkpoint, data
