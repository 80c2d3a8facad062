"""What the job was asked to be: the same for its whole life."""

from __future__ import annotations

import msgspec


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was asked to be. The same for its whole life, whoever coordinates it."""

    job: str
    entrypoint: str
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    max_restarts: int = 0
    infra_ranks: bool = True
    last_call: float = 3.0
    pend_timeout: float = 600.0
    empty_timeout: float = 10.0
    node_timeout: float = 3.0
    restart_grace: float = 0.05
    tie_break: bool = False  # of two nodes, one alone may go on, whichever it is
    failover: bool = False  # causes and history decide, not `max_restarts` alone
    crash_loop: int = 0  # so often the same failure without progress ends the job; 0: never
    exclude_for: float = 1800.0  # seconds that a node is left out
    eviction_limit: int = 3  # nodes left out in an hour
    straggler: str = "warn"  # what is done about ranks that are slower than the others: "warn", "exclude", "off"
    straggler_factor: float = 1.2
    safety_factor: float = 5.0  # of calibrated time-outs
    planned_change_timeout: float = 0.0  # seconds that a planned change waits for all ranks to save; 0: it does not
    alone: bool = False  # no other node can ever come: nobody could take this one's place, however long it is silent
    network_check: bool = False  # nodes are checked before they are let in
    check_only: bool = False  # and nothing is run on them
    exclude_straggler: bool = False
    slow_node_factor: float = 2.0  # in a check
    node_check_timeout: float = 60.0
    comm_perf_test: bool = False
