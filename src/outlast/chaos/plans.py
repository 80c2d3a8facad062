"""Plans: a YAML file with faults, when each comes, and chance by a seed.

    seed: 7
    faults:
      - kill-worker
      - {fault: hang, kind: stopped, rank: 1, after: 10}
      - {fault: lose-node, after: {mean: 60}, times: 5}

`after` is in seconds after the answer to the fault before; with a mean, it is drawn from an exponential distribution.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from outlast.chaos.faults import ChaosRequest


class _Mean(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mean: float


class _Entry(ChaosRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: float | _Mean = 0.0
    times: int = 1

    def request(self) -> ChaosRequest:
        asked = {name: getattr(self, name) for name in ChaosRequest.__struct_fields__}
        return ChaosRequest(**asked).checked()


class _Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    faults: list[_Entry | str]
    seed: int = 0


class PlannedChaos(msgspec.Struct, frozen=True):
    """One fault, so many seconds after the answer to the one before."""

    after: float
    request: ChaosRequest


class ChaosPlan(msgspec.Struct, frozen=True):
    """All of them, in order."""

    seed: int
    faults: tuple[PlannedChaos, ...]


def read_plan(path: Path, seed: int | None = None) -> ChaosPlan:
    """The plan of this file. Raises ValueError, in one line; also for a fault that there is not."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
        plan = msgspec.convert(content, _Plan)
        seed = plan.seed if seed is None else seed
        return ChaosPlan(seed, tuple(_faults(plan, random.Random(seed))))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"{path}: {str(error).partition(chr(10))[0]}") from None


def _faults(plan: _Plan, draw: random.Random) -> Iterator[PlannedChaos]:
    for each in plan.faults:
        entry: Any = _Entry(fault=each) if isinstance(each, str) else each
        request = entry.request()
        for _ in range(entry.times):
            after = draw.expovariate(1 / entry.after.mean) if isinstance(entry.after, _Mean) else entry.after
            yield PlannedChaos(after, request)
