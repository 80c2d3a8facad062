"""What an agent asks of a check's processes, and the words in which they answer, a line of JSON each."""

from __future__ import annotations

import msgspec

VARIABLE = "OUTLAST_CHECK"  # of the environment, in which a process finds its plan
MARK = b"\x1e"  # begins a line that is a word of ours: libraries print, too
NETWORK = "network"  # the phase that needs others

# Seconds that each phase may take. The first use of a device may have to build much.
LIMITS = {
    "device": 60.0,
    "system": 10.0,
    "health": 10.0,
    "compute": 20.0,
    "memory": 20.0,
    "disk": 20.0,
    "local": 30.0,
    NETWORK: 60.0,
}
START = 120.0  # seconds until a process begins: torch may have to be imported


class CheckPlan(msgspec.Struct, frozen=True):
    """One process's part in a probe."""

    number: int
    local_rank: int
    local_size: int
    rank: int
    size: int
    address: str  # of the store of the whole group
    port: int
    meeting: str  # a file for the store of this node's own processes
    limit: float
    accelerator: str = "auto"
    path: str = ""  # a directory whose disk is tried
    perf: bool = False

    def limit_of(self, phase: str) -> float:
        """Seconds for this phase.

        >>> CheckPlan(1, 0, 1, 0, 1, "", 0, "", limit=5.0).limit_of("network")
        5.0
        """
        return min(LIMITS[phase], self.limit)


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a process says."""

    phase: str = ""  # that it begins; "done" at the end
    figures: dict[str, float] = {}
    facts: dict[str, str] = {}
    warning: str = ""
    failed: str = ""  # in the phase that it is at
    certain: bool = False  # no second try is needed to say that this node is faulty
