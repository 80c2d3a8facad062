"""What every provider has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from outlast.jobs.spec import JobSpec


class SubmitRequest(Protocol):
    """What a platform will be asked, as plain data."""

    def text(self) -> str:
        """Exactly what is submitted, for people: the dry run prints it."""


RequestT = TypeVar("RequestT", bound=SubmitRequest)


class JobProvider(ABC, Generic[RequestT]):
    """Starts jobs on one platform."""

    @abstractmethod
    def plan(self, spec: JobSpec) -> RequestT:
        """What to ask the platform for. Pure; raises ValueError for a job that it cannot run."""

    @abstractmethod
    def submit(self, request: RequestT) -> int:
        """Ask for it; an exit code. Raises ValueError or OSError, with one line that says what to do."""
