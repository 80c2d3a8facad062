"""Events in, spans out: one for the job, below it one for each generation and for each recovery."""

from __future__ import annotations

from typing import Any

from outlast.events import events
from outlast.events.events import JobEvent, Level, level_of
from outlast.events.numbered import NumberedEvent
from outlast.events.reasons import FailedRank
from outlast.events.sentences import sentence, why

MISSING = "opentelemetry-sdk is not installed: pip install 'outlast[otel]'"
LONGEST = 1000  # characters of a text
_FAILURES = (events.WorkerFailed, events.TaskRelaunched, events.HangNamed, events.NodeLost, events.QuorumMissing)


class EventSpans:
    """Makes spans of the events of one run, with the times at which things happened.

        spans = EventSpans(provider)
        async for told in observer.events(after=0):
            if isinstance(told, NumberedEvent):
                spans.read(told, job=observer.job, run=observer.run)
        spans.close()

    `provider`: a `TracerProvider` of opentelemetry's. Raises ValueError, in one line, without the package.
    """

    def __init__(self, provider: Any) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise ValueError(MISSING) from None
        self._trace = trace
        self._tracer = provider.get_tracer("outlast")
        self._job: Any = None
        self._generation: Any = None
        self._recovery: Any = None
        self._last = 0  # nanoseconds

    def read(self, told: NumberedEvent, *, job: str = "", run: str = "") -> None:
        """The next event. What does not begin or end a span is an event of the innermost one."""
        event, at = told.event, _nanoseconds(told.time)
        self._last = max(self._last, at)
        happened = _nanoseconds(told.time - getattr(event, "ago", 0.0))
        if self._job is None:
            self._job = self._tracer.start_span(
                f"job {job}".strip(), start_time=happened, attributes={"outlast.job": job, "outlast.run": run}
            )
        if isinstance(event, events.GenerationFormed):
            self._formed(event, at)
        elif isinstance(event, events.GenerationEnding):
            self._ending(event, happened)
        elif isinstance(event, events.TrainingBegan):
            self._end("_recovery", happened)
        elif isinstance(event, events.JobOver):
            self._over(event, at)
        elif not isinstance(event, events.TrainingProgress):
            self._note(event, at)

    def close(self) -> None:
        """End what is open: nothing more will be read. A job that goes on has its spans cut here."""
        for span in ("_recovery", "_generation", "_job"):
            self._end(span, self._last)

    def _formed(self, event: events.GenerationFormed, at: int) -> None:
        self._end("_generation", at)
        self._generation = self._begin(
            f"generation {event.generation}",
            at,
            {
                "outlast.generation": event.generation,
                "outlast.nodes": len(event.nodes),
                "outlast.ranks": event.ranks,
                "outlast.restarts": event.restarts,
            },
        )

    def _ending(self, event: events.GenerationEnding, happened: int) -> None:
        if event.also:
            self._note(event, happened)
            return
        text = why(event.reason)[:LONGEST]
        kind = str(event.reason.__struct_config__.tag)
        self._fail(self._generation, event.reason, text)
        self._end("_generation", happened)
        self._end("_recovery", happened)
        about = {"outlast.generation": event.generation, "outlast.reason": kind, "outlast.text": text}
        self._recovery = self._begin("recovery", happened, about)

    def _over(self, event: events.JobOver, at: int) -> None:
        if not event.success:
            self._job.set_status(self._trace.Status(self._trace.StatusCode.ERROR, event.reason[:LONGEST]))
        self._job.set_attribute("outlast.ending", event.ending.value)
        self._last = at
        self.close()

    def _begin(self, name: str, at: int, attributes: dict[str, Any]) -> Any:
        context = self._trace.set_span_in_context(self._job)
        return self._tracer.start_span(name, context=context, start_time=at, attributes=attributes)

    def _fail(self, span: Any, reason: object, text: str) -> None:
        if span is not None and isinstance(reason, FailedRank):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))

    def _end(self, span: str, at: int) -> None:
        made = getattr(self, span)
        if made is not None:
            made.end(end_time=at)
            setattr(self, span, None)

    def _note(self, event: JobEvent, at: int) -> None:
        level = Level.ERROR if isinstance(event, _FAILURES) else level_of(event)
        about = {"outlast.level": level.value, "outlast.text": sentence(event)[:LONGEST]}
        innermost = self._recovery or self._generation or self._job
        innermost.add_event(str(event.__struct_config__.tag), about, timestamp=at)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
