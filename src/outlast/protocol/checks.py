"""The checks of nodes: what they are asked, and what they found (core/node_checks/gate.py)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlast.protocol.fields import Address, Count, Finite, Name, Port, Reason, Time


class Findings(msgspec.Struct, frozen=True, array_like=True, tag="findings"):
    """How a node did when it was checked: the answer to `Probe`. Figures are rates: more is better."""

    term: Count
    number: Count
    alone: Reason = ""  # why it fails by itself
    certain: bool = False  # and no second try is needed to say so
    together: Reason = ""  # why it failed with its partners
    figures: Annotated[dict[Name, Finite], msgspec.Meta(max_length=64)] = {}
    facts: Annotated[dict[Name, Name], msgspec.Meta(max_length=64)] = {}  # what should be the same on all nodes
    warnings: Annotated[tuple[Reason, ...], msgspec.Meta(max_length=64)] = ()
    clock: Time = 0.0  # of its agent, when this was sent
    wall: Time = 0.0  # and what a watch said there


class Probe(msgspec.Struct, frozen=True, array_like=True, tag="probe"):
    """Check this node: by itself, then with the others of its group. One that is still at an older one drops that."""

    term: Count
    number: Count  # of the round; grows
    first_rank: Count
    world_size: Count
    master_addr: Address
    master_port: Port
    limit: Time  # seconds for all of it
    perf: bool = False  # collectives of many sizes are measured
