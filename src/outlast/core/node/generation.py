"""The newest generation that was started here: how its workers get on, and how they end."""

from __future__ import annotations

from outlast.protocol.failures import Failure
from outlast.protocol.generations import Assignment, Halted
from outlast.protocol.membership import State
from outlast.protocol.paces import Training


class LocalGeneration:
    """This node's part of one generation; number 0 stands for none.

    >>> none = LocalGeneration()
    >>> none.number, none.clear, none.runs(0)
    (0, True, False)
    """

    def __init__(self, assignment: Assignment | None = None) -> None:
        self.assignment = assignment
        self.number = assignment.generation if assignment is not None else 0
        self.state = State.RUNNING if assignment is not None else State.IDLE
        self.clear = assignment is None  # no process of it is alive
        self.stopping = False
        self.shortest_grace = float("inf")  # that the workers were given to end
        self.failures: list[Failure] = []
        self.patience = 0.0  # seconds that the workers are given after a failure, if that is more than usual
        self.halted: Halted | None = None
        self.training: Training | None = None

    @property
    def failed(self) -> bool:
        """Whether one of its workers has failed."""
        return self.state is State.FAILED

    @property
    def told_to_stop(self) -> bool:
        """Whether its workers are being ended for no failure of theirs: then none of their ends is one."""
        return self.stopping and not self.failures

    def runs(self, number: int) -> bool:
        """Whether workers of this generation live here, and have not been told to end."""
        return number == self.number and not self.clear and not self.stopping

    def stop(self, grace: float | None) -> bool:
        """Its workers are to end within this time. Returns whether that is news to them."""
        seconds = float("inf") if grace is None else grace
        if self.stopping and seconds >= self.shortest_grace:
            return False
        self.stopping, self.shortest_grace = True, seconds
        return True

    def fail(self, failure: Failure, patience: float) -> bool:
        """A worker has failed. Returns whether it is the first."""
        self.failures.append(failure)
        first = not self.failed
        if first:
            self.state, self.patience = State.FAILED, patience
        return first

    def decide(self, failure: Failure) -> bool:
        """What to do about a failure is known now. Returns whether it is one of these."""
        told = [(each.rank, each.pid) for each in self.failures]
        this = (failure.rank, failure.pid)
        if this in told:
            self.failures[told.index(this)] = failure
        return this in told

    def end(self) -> None:
        """No process of it is alive any more."""
        self.clear = True
        if self.state is State.RUNNING:
            self.state = State.IDLE if self.stopping else State.FINISHED

    def train(self, training: Training) -> bool:
        """How far its workers have come. Returns whether that is worth a report of its own: the first step is."""
        first, self.training = self.training is None, training
        return first

    def halt(self, halted: Halted) -> bool:
        """How far its workers have come, which are to halt. Returns whether that is news."""
        news = halted != self.halted
        self.halted = halted
        return news
