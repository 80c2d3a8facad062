"""Spans of a job's events, by the SDK's own exporter in memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from outlast.events import events, reasons
from outlast.events.events import JobEvent
from outlast.events.numbered import NumberedEvent
from outlast.tracing import EventSpans

FAILED = reasons.FailedRank("b", 3, -9, cause="killed")
STORY: list[tuple[float, JobEvent]] = [
    (10.0, events.JobBegan(generation=0, least=1, most=2, ago=1.0)),
    (11.0, events.GenerationFormed(generation=1, nodes=("a", "b"), ranks=4, spares=0, restarts=0)),
    (13.0, events.TrainingBegan(generation=1, step=1)),
    (20.0, events.GenerationEnding(generation=1, reason=FAILED, ago=0.5)),
    (20.5, events.WorkerFailed(generation=1, failure=FAILED, followers=2)),
    (21.0, events.GenerationFormed(generation=2, nodes=("a", "b"), ranks=4, spares=0, restarts=1)),
    (24.0, events.TrainingBegan(generation=2, step=5, ago=1.0)),
]
OVER = events.JobOver(
    generation=2,
    success=False,
    ending=events.Ending.STOPPED,
    reason="stopped by ann",
    seconds=20.0,
    generations=2,
    restarts=1,
)


def spans_of(story: list[tuple[float, JobEvent]]) -> dict[str, Any]:
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter, provider = export.InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = EventSpans(provider)
    for number, (time, event) in enumerate(story, 1):
        spans.read(NumberedEvent(number, time, 1, event), job="bert", run="r")
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def length(span: Any) -> tuple[float, float]:
    return span.start_time / 1e9, span.end_time / 1e9


def test_a_job_is_a_trace_of_generations_and_recoveries_at_the_times_they_happened() -> None:
    spans = spans_of([*STORY, (30.0, OVER)])
    assert set(spans) == {"job bert", "generation 1", "generation 2", "recovery"}
    assert length(spans["job bert"]) == (9.0, 30.0)
    assert length(spans["generation 1"]) == (11.0, 19.5)
    assert length(spans["recovery"]) == (19.5, 23.0)
    assert length(spans["generation 2"]) == (21.0, 30.0)
    root = spans["job bert"].context.span_id
    assert {span.parent.span_id for name, span in spans.items() if name != "job bert"} == {root}
    assert spans["job bert"].attributes["outlast.ending"] == "stopped"


def test_a_failure_is_an_error_of_its_generation_with_its_sentence() -> None:
    spans = spans_of(STORY)
    assert not spans["generation 1"].status.is_ok
    assert "rank 3 on node b failed" in spans["generation 1"].status.description
    assert spans["recovery"].attributes["outlast.reason"] == "rank failed"
    (noted,) = spans["recovery"].events
    assert (noted.name, noted.attributes["outlast.level"]) == ("worker failed", "error")


def test_what_is_open_ends_with_the_last_event_when_nobody_follows_any_more() -> None:
    assert length(spans_of(STORY)["job bert"]) == (9.0, 24.0)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ValueError, match=r"pip install 'outlast\[otel\]'"):
        EventSpans(None)
