"""What the probe writes, read back: one `RankLife` for each rank of each generation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec


class BornRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="born"):
    """A worker is about to run its script."""

    time: float
    rank: int
    world: int
    generation: int


class SetupRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="setup"):
    """Where the time before the first step went, the longest first; and what SIGTERM does."""

    time: float
    lines: list[tuple[str, float]]  # `file:line` and seconds; an empty line: Python itself
    handler: str


class StepRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="step"):
    """One step of an optimizer. Texts are fingerprints."""

    made: float  # when
    number: int  # in this process, from 1
    loss: float | None
    after: str  # weights
    norm: float  # of the weights
    optimizer: str  # its state, after the step
    optimizer_stateful: bool
    rates: list[float]  # learning rates
    batches: list[list[str]] = []  # samples that were taken from a DataLoader since the step before
    rng: str = ""  # torch's random numbers, before the step
    before: str = ""  # weights before the first step
    optimizer_before: str = ""
    optimizer_empty: bool = False

    @property
    def samples(self) -> list[str]:
        """Of all batches."""
        return [sample for batch in self.batches for sample in batch]


class SaveRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="save"):
    """A checkpoint has been written, after so many steps of this process."""

    time: float
    began: float
    path: str
    line: str
    keys: list[str]
    step: int
    ours: bool = False  # by outlast.Checkpointer


class LoadRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="load"):
    """A checkpoint has been read, or could not be."""

    time: float
    began: float
    path: str
    line: str
    error: str
    step: int


class LoaderRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="loader"):
    """A DataLoader was made."""

    line: str
    sampler: str
    seeded: bool


class HandlerRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="handler"):
    """This line says what SIGTERM does."""

    line: str
    ignored: bool


class FaultRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="fault"):
    """A fault of the plan happens now, after this step of the process."""

    time: float
    name: str
    what: str
    step: int


class DamagedRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="damaged"):
    """This file was damaged; empty: there was none."""

    path: str


class EndRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="end"):
    """The script has ended by itself."""

    time: float


ProbeRecord = (
    BornRecord
    | SetupRecord
    | StepRecord
    | SaveRecord
    | LoadRecord
    | LoaderRecord
    | HandlerRecord
    | FaultRecord
    | DamagedRecord
    | EndRecord
)


class RankLife(msgspec.Struct):
    """One process of the training, from its first line to its end."""

    born: BornRecord
    setup: SetupRecord | None = None
    steps: list[StepRecord] = []
    saves: list[SaveRecord] = []
    loads: list[LoadRecord] = []
    loaders: list[LoaderRecord] = []
    handlers: list[HandlerRecord] = []
    faults: list[FaultRecord] = []
    damaged: list[DamagedRecord] = []
    end: EndRecord | None = None

    def add(self, record: ProbeRecord) -> None:
        """Put it where it belongs."""
        match record:
            case SetupRecord():
                self.setup = record
            case StepRecord():
                self.steps.append(record)
            case SaveRecord():
                self.saves.append(record)
            case LoadRecord():
                self.loads.append(record)
            case LoaderRecord():
                self.loaders.append(record)
            case HandlerRecord():
                self.handlers.append(record)
            case FaultRecord():
                self.faults.append(record)
            case DamagedRecord():
                self.damaged.append(record)
            case EndRecord():
                self.end = record


def life_of(records: Iterable[ProbeRecord]) -> RankLife | None:
    """The life that these tell of; None if it has not begun."""
    life: RankLife | None = None
    for record in records:
        if isinstance(record, BornRecord):
            life = RankLife(record)
        elif life is not None:
            life.add(record)
    return life


def read_lives(directory: Path) -> list[RankLife]:
    """All lives that were recorded there, by generation and rank. A last line that is still being written is left."""
    decoder = msgspec.json.Decoder(ProbeRecord)
    found = []
    for path in directory.glob("rank-*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]
        life = life_of(decoder.decode(line) for line in lines)
        if life is not None:
            found.append(life)
    return sorted(found, key=lambda life: (life.born.generation, life.born.rank))
