"""A generation on one node: its assignment, its start, its planned halt and its stop."""

from __future__ import annotations

import msgspec

from outlast.protocol.fields import Count
from outlast.protocol.snapshots import Keeping
from outlast.protocol.succession import Charter


class Halted(msgspec.Struct, frozen=True, array_like=True):
    """Where the ranks of a node are, before a planned change. Boundaries are numbered within a generation."""

    at: Count  # the boundary at which they are to halt, as far as the node knows; 0: at the next one, until it is named
    able: bool  # all of them come to boundaries
    passed: Count  # the last one that any of them has gone past
    sealed: Count = 0  # all of them have saved at this one, and wait there
    step: Count | None = None  # which was that of this step; None: not all could


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """One node's place in a generation. Its size does not grow with the number of nodes."""

    generation: int
    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    role_rank: int  # of this node's first worker, among the workers of its role
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    fresh: bool = False  # nothing that is kept between restarts is used


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start the workers of this generation. Also a leased `Ack` of the report that it answers."""

    assignment: Assignment
    term: int
    charter: Charter
    ack: int = 0
    keeping: Keeping = Keeping()


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt"):
    """A change is planned: let your ranks save at this boundary, and wait there for their end."""

    generation: Count
    at: Count = 0  # 0: not named yet; whoever comes to one waits for that
    durable: bool = True  # and have it written to disk


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Stop every worker up to this generation, and never start one of them again."""

    generation: int
    term: int
    graceful: bool = False  # the workers get the whole shutdown timeout to end by themselves
