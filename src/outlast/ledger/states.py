"""The closed set of states that time can stand in."""

from __future__ import annotations

from enum import Enum

SECOND = 1_000_000_000  # nanoseconds: the ledger counts in whole ones, so that sums are exact


class LedgerState(str, Enum):
    """What a second went into."""

    QUEUED = "queued"  # from the submission to the start of the first node
    PROVISIONING = "provisioning"  # fewer than MIN nodes are here
    STARTING = "starting"  # from the formed generation to its first step
    CHECKING = "checking"  # node checks that a generation waits for
    PRODUCTIVE = "productive"
    REDONE = "redone"  # steps that a rollback made void
    DATA_WAIT = "data wait"
    CHECKPOINT = "checkpoint"  # training waits for a save
    RESTORING = "restoring"
    DETECTING = "detecting"  # from a fault to its discovery
    STOPPING = "stopping"
    FORMING = "forming"
    HUNG = "hung"
    SLOWED = "slowed"  # by a straggler: what a step takes beyond that of the median rank
    DRAINING = "draining"  # a planned change: all ranks save before the generation ends
    SUSPENDED = "suspended"  # the whole job stood still
    REDUCED = "reduced"  # node-seconds alone: nodes that are missing to the wanted size
    SPARE = "spare"  # node-seconds alone: nodes that are here without a place in the generation
    UNKNOWN = "unknown"


NODE_ONLY = frozenset({LedgerState.REDUCED, LedgerState.SPARE})
RUNNING = frozenset(
    {LedgerState.STARTING, LedgerState.PRODUCTIVE, LedgerState.HUNG, LedgerState.DRAINING, LedgerState.UNKNOWN}
)
# Of these a recovery is made, in this order.
PHASES = (
    LedgerState.HUNG,
    LedgerState.DETECTING,
    LedgerState.DRAINING,
    LedgerState.STOPPING,
    LedgerState.CHECKING,
    LedgerState.PROVISIONING,
    LedgerState.FORMING,
    LedgerState.STARTING,
    LedgerState.RESTORING,
)
