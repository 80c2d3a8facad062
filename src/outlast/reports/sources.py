"""Where the events of a run are found: a log directory, a file of events, or a coordinator's journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from outlast.core.job.commands import Publish
from outlast.core.job.job import Job
from outlast.events.phrases import count
from outlast.journal import Began, Happened, JournalCut, JournalDamaged, Record, read
from outlast.ledger.reading import EVENTS, RecordedEvent, Recording, recordings


def recorded(paths: Sequence[Path], *, job: str = "") -> tuple[Recording, list[str]]:
    """The newest run that these tell of, and what to say about how whole it is. Raises ValueError in one line."""
    notes: list[str] = []
    files = [file for path in paths for file in _files(path)]
    texts, replayed = [], []
    for file in files:
        data = file.read_bytes()
        if _is_journal(data):
            replayed += _replayed(data, file, notes)
        else:
            texts.append(data)
    runs = [run for run in recordings(texts) if not job or run.job == job]
    if replayed and not runs:
        runs = [Recording(replayed[0].job, replayed[0].run, tuple(replayed))]
    if not runs:
        where, which = ", ".join(map(str, paths)), f" of job {job}" if job else ""
        raise ValueError(f"{where} holds no event{which}: give a log directory, an --ft-events file or an --ft-journal")
    newest = runs[-1]
    if len(runs) > 1:
        notes.append(f"there are {len(runs)} runs; this is the newest")
    if newest.skipped:
        notes.append(f"{count(newest.skipped, 'line')} could not be read")
    return newest, notes


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted([*path.glob(EVENTS), *path.glob(f"*/{EVENTS}")])
    if not found:
        raise ValueError(f"{path} holds no {EVENTS}: is it the --log-dir of a job that Outlast ran?")
    return found


def _is_journal(data: bytes) -> bool:
    """Whether its first line begins with a checksum: that of an events file begins with a brace."""
    head = data[:9]
    return len(head) == 9 and head[8:] == b" " and all(byte in b"0123456789abcdef" for byte in head[:8])


def _replayed(data: bytes, file: Path, notes: list[str]) -> list[RecordedEvent]:
    events: list[RecordedEvent] = []
    try:
        for each in replayed(read(data)):
            events.append(each)  # noqa: PERF402 - what was read before the damage counts
    except JournalDamaged as damaged:
        notes.append(f"{file} is {damaged}; what follows is missing")
    return events


def replayed(records: Iterator[Record]) -> Iterator[RecordedEvent]:
    """The events of a journal: its inputs, decided once more."""
    job: Job | None = None
    began: Began | None = None
    number = 0
    for record in records:
        if isinstance(record, Began):
            began = record
            job = Job(
                record.rules,
                record.at,
                term=record.term,
                run=record.run,
                memory=record.memory,
                charter=record.charter,
            )
        elif isinstance(record, JournalCut):
            job = None
        elif isinstance(record, Happened) and job is not None and began is not None:
            job.foretell(record.acts)
            wall = began.wall + record.at - began.at
            for made in job.handle(record.event, record.at):
                if isinstance(made, Publish):
                    number += 1
                    yield RecordedEvent(wall, made.event, began.rules.job, job.run, job.term.number, number)
