"""What is in a node's memory: the snapshots of its own ranks, and the copies of others'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.checkpoint.memory import arena
from outlast.checkpoint.memory.slot import Mark, Ticket
from outlast.checkpoint.storage.format import Save
from outlast.protocol.snapshots import Held

MOST_HELD = 16  # snapshots that a node tells of, the newest; there are never so many but by somebody's mistake
HIGHEST = 2**53
LONGEST = 255


@dataclass(frozen=True)
class NodeSnapshot:
    """The slots of one save, of all ranks of this node."""

    ticket: Ticket  # of one of them
    paths: tuple[Path, ...]

    @property
    def mark(self) -> Mark:
        return self.ticket.mark

    @property
    def workers(self) -> frozenset[str]:
        """Whose slots these are, by their numbers on this node."""
        return frozenset(path.name.partition(".")[0] for path in self.paths)


def snapshots(directory: Path) -> list[NodeSnapshot]:
    """The snapshots that all ranks of this node have sealed, the newest first.

    Those of one run by their numbers, for the clock may have been set back meanwhile.
    """
    by_save: dict[Save, list[tuple[Path, Ticket]]] = {}  # not by mark: ranks that count alike may save other steps
    for path, ticket in arena.tickets(directory):
        by_save.setdefault(ticket.save, []).append((path, ticket))
    whole = [NodeSnapshot(slots[0][1], tuple(path for path, _ in slots)) for slots in by_save.values() if _whole(slots)]
    runs: dict[str, float] = {}
    for each in whole:
        run, saved_at = each.ticket.save.run, each.ticket.saved_at
        runs[run] = max(saved_at, runs.get(run, saved_at))
    return sorted(whole, key=lambda each: (runs[each.ticket.save.run], each.mark), reverse=True)


def _whole(slots: Sequence[tuple[Path, Ticket]]) -> bool:
    return len({ticket.rank for _, ticket in slots}) == slots[0][1].here


def overtaken(directory: Path) -> list[Ticket]:
    """Of the snapshots that some rank of this node has sealed: those that another one has overwritten, so that they
    will never be whole. One ticket of each.
    """
    sealed: dict[Save, dict[str, Ticket]] = {}
    newest: dict[tuple[str, str], int] = {}  # by worker and run
    for path, ticket in arena.tickets(directory):
        worker, save = path.name.partition(".")[0], ticket.save
        sealed.setdefault(save, {})[worker] = ticket
        newest[worker, save.run] = max(save.sequence, newest.get((worker, save.run), 0))
    found = []
    for save, workers in sealed.items():
        further = {worker for (worker, run), at in newest.items() if run == save.run and at > save.sequence}
        first = next(iter(workers.values()))
        if len(workers) < first.here == len(further | workers.keys()):
            found.append(first)
    return found


def different_steps(directory: Path) -> str:
    """Which ranks of this node count different steps as the same save, in one line; "" if none do."""
    steps: dict[Mark, dict[int, int]] = {}
    for _, ticket in arena.tickets(directory):
        steps.setdefault(ticket.mark, {})[ticket.save.step] = ticket.rank
    for found in steps.values():
        if len(found) > 1:
            (step, rank), (other, another), *_ = sorted(found.items())
            return (
                f"rank {rank} saves step {step} where rank {another} saves step {other}: such snapshots cannot be "
                "restored. All ranks must call save at the same steps (does one skip it, or go by a clock of its own?)"
            )
    return ""


def held(directory: Path) -> tuple[Held, ...]:
    """What is told of it to the coordinator: whatever ranks there are of each snapshot."""
    tickets: dict[Save, Ticket] = {}
    ranks: dict[Save, set[int]] = {}
    copies: dict[Save, set[int]] = {}
    for into, replicas in ((ranks, False), (copies, True)):
        for _, ticket in arena.tickets(directory, replicas=replicas):
            if 0 <= ticket.save.step <= HIGHEST and max(map(len, (ticket.save.run, ticket.origin))) <= LONGEST:
                tickets.setdefault(ticket.save, ticket)
                into.setdefault(ticket.save, set()).add(ticket.rank)
    newest = sorted(tickets.values(), key=lambda each: each.saved_at, reverse=True)[:MOST_HELD]
    return tuple(
        Held(
            *(each.save.run, each.save.sequence, each.save.step, each.save.generation, each.save.world),
            *(each.origin, each.saved_at),
            tuple(sorted(ranks.get(each.save, ()))),
            tuple(sorted(copies.get(each.save, set()) - ranks.get(each.save, set()))),
        )
        for each in newest
    )


def shards(directory: Path, mark: Mark, ranks: Sequence[int]) -> Iterator[tuple[Path, Ticket]]:
    """The slots with these ranks' shards of a save: of the node's own workers, and copies of the others."""
    wanted = set(ranks)
    for replicas in (False, True):
        for path, ticket in arena.tickets(directory, replicas=replicas):
            if ticket.mark == mark and ticket.rank in wanted:
                wanted.discard(ticket.rank)
                yield path, ticket
