"""Jobs that outlive their driver: the overseer is an actor of its own, which Ray starts again wherever it can.

Its agents are detached, too. One that was started again finds them by their names, and asks them for the token: it is
never in Ray's own records. Where it finds none, it cannot know whether the job is over, and starts nothing.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import ray

from outlast.events.numbered import NumberedEvent
from outlast.protocol.requests import Answer
from outlast.protocol.views import JobView
from outlast.ray.handle import OverseerThread
from outlast.ray.overseer import RayOutcome
from outlast.ray.request import NAMESPACE, RayRequest

ANSWERED = 10.0  # seconds after which a question is answered, news or not
KEPT = 600.0  # seconds for which the overseer of a job that is over still tells how it ended
CALLS = 64  # at a time


class OverseerActor:
    """The overseer of one detached job."""

    def __init__(self, request: RayRequest) -> None:
        context = ray.get_runtime_context()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s outlast %(name)s: %(message)s", datefmt="%H:%M:%S")
        self._overseer = OverseerThread(request, again=context.was_current_actor_reconstructed)
        self._myself = context.current_actor
        threading.Thread(target=self._see_off, name="outlast-end", daemon=True).start()

    def events_after(self, count: int) -> list[NumberedEvent] | None:
        return self._overseer.events_after(count, ANSWERED)

    def wait(self) -> RayOutcome | None:
        return self._overseer.wait(ANSWERED)

    def view(self) -> JobView | None:
        return self._overseer.view()

    def ask(self, what: str, subject: str) -> Answer:
        return self._overseer.ask(what, subject)

    def _see_off(self) -> None:
        with self._overseer.news:
            self._overseer.news.wait_for(lambda: self._overseer.over)
        threading.Event().wait(KEPT)
        ray.kill(self._myself)


class RemoteOverseer:
    """The same, from a driver: a call that the actor's death has cut off is made again."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def events_after(self, count: int, timeout: float | None) -> list[NumberedEvent] | None:  # noqa: ARG002
        found: list[NumberedEvent] | None = ray.get(self._actor.events_after.remote(count))
        return found

    def wait(self, timeout: float | None) -> RayOutcome | None:
        waited = 0.0
        while True:
            outcome: RayOutcome | None = ray.get(self._actor.wait.remote())
            waited += ANSWERED
            if outcome is not None or (timeout is not None and waited >= timeout):
                return outcome

    def view(self) -> JobView | None:
        found: JobView | None = ray.get(self._actor.view.remote())
        return found

    def ask(self, what: str, subject: str = "") -> Answer:
        answer: Answer = ray.get(self._actor.ask.remote(what, subject))
        return answer


def start_detached(request: RayRequest) -> RemoteOverseer:
    """An overseer that outlives this process. Raises ValueError if there is a job of this name."""
    options = {
        "name": overseer_name(request.job),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "max_concurrency": CALLS,
    }
    try:
        return RemoteOverseer(ray.remote(OverseerActor).options(**options).remote(request))
    except ValueError:
        raise ValueError(f"there is a job {request.job!r} on this cluster: give another name") from None


def find_detached(job: str) -> RemoteOverseer:
    """The overseer of a running job, or of one that ended lately. Raises ValueError."""
    try:
        return RemoteOverseer(ray.get_actor(overseer_name(job), namespace=NAMESPACE))
    except ValueError:
        raise ValueError(f"no detached job {job!r} is on this cluster, or it ended a while ago") from None


def overseer_name(job: str) -> str:
    return f"{job}/overseer"
