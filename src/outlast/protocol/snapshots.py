"""Snapshots in the memory of nodes: what they have, and what they are told (core/job/snapshots.py)."""

from __future__ import annotations

import msgspec

from outlast.protocol.fields import Address, Count, Name, Port, Time


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a node's memory has of one snapshot."""

    run: Name  # with `sequence`: which snapshot, the same on all ranks
    sequence: Count
    step: Count
    generation: Count
    world: Count  # ranks that have a shard of it
    origin: Name  # the id of the directory that it was taken for
    saved_at: Time
    ranks: tuple[Count, ...] = ()  # whose shards are there as their workers left them
    replicas: tuple[Count, ...] = ()  # and whose as another node sent them


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A keeper that has shards of a snapshot, and where it listens."""

    addr: Address
    port: Port
    ranks: tuple[Count, ...] = ()
    replicas: tuple[Count, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that all ranks of a generation have sealed, and that is whole in the memory of those who are here."""

    run: Name
    sequence: Count
    step: Count
    world: Count
    origin: Name
    saved_at: Time
    holders: tuple[Holder, ...]


class Keeping(msgspec.Struct, frozen=True, array_like=True):
    """What a node has to know about snapshots when a generation starts."""

    partner: Holder | None = None  # whose memory takes a copy of what is taken here
    snapshots: tuple[Snapshot, ...] = ()  # that can be restored from memory, the newest first
    stride: Count = 1  # see `Stride`


class Stride(msgspec.Struct, frozen=True, array_like=True, tag="stride"):
    """One in so many snapshots, a power of two, is copied to other nodes: the same ones on all nodes."""

    stride: Count
