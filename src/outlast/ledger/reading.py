"""Files of events as they were written: whole, cut short, of several runs, of another version."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.events.events import VERSION, JobEvent

EVENTS = "events.jsonl"  # in a log directory


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event of a file, with its time and where it belongs."""

    time: float
    event: JobEvent
    job: str = ""
    run: str = ""
    term: int = 1
    number: int = 0


class Recording(msgspec.Struct, frozen=True):
    """The events of one run, in order. `skipped`: lines that could not be read."""

    job: str
    run: str
    events: tuple[RecordedEvent, ...]
    skipped: int = 0
    version: int = VERSION


class _Envelope(msgspec.Struct, frozen=True):
    version: int
    time: float
    job: str = ""
    run: str = ""
    term: int = 1
    number: int = msgspec.field(default=0, name="id")


_envelope = msgspec.json.Decoder(_Envelope)
_event = msgspec.json.Decoder(JobEvent)


def recordings(files: Iterable[bytes]) -> list[Recording]:
    """The runs that these files tell of, the newest last.

    A run whose coordinator moved from host to host is told in the files of all of these hosts.
    """
    found: dict[tuple[str, str], dict[tuple[int, int], RecordedEvent]] = {}
    skipped, version = 0, 0
    for data in files:
        for line in data.splitlines():
            try:
                head, event = _envelope.decode(line), _event.decode(line)
            except msgspec.MsgspecError:
                skipped += bool(line.strip())
                continue
            version = max(version, head.version)
            each = RecordedEvent(head.time, event, head.job, head.run, head.term, head.number)
            events = found.setdefault((each.job, each.run), {})
            events.setdefault((each.term, each.number) if each.number else (each.term, len(events)), each)
    runs = [
        Recording(job, run, tuple(_in_order(events.values())), skipped, version) for (job, run), events in found.items()
    ]
    return sorted(runs, key=lambda each: each.events[-1].time)


def _in_order(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """By number where there is one; within a term as they were written: a clock may have been set back."""
    return sorted(events, key=lambda each: (each.term, each.number))
