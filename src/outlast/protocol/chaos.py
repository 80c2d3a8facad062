"""Faults on purpose: what `outlast chaos` asks for, and what an agent is told to do, with --allow-chaos."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from outlast.protocol.fields import Count, Finite, Name, Reason, Time


class ChaosFault(msgspec.Struct, frozen=True, array_like=True):
    """One fault on one node."""

    name: Name
    local_rank: Count | None = None  # of the worker; None: the node itself
    seconds: Time = 0.0  # for how long, where it ends by itself
    value: Finite = 0.0  # an exit code, a share, a number of seconds
    text: Name = ""  # a kind, a direction, a path


class AskChaos(msgspec.Struct, frozen=True, array_like=True, tag="ask chaos"):
    """A person wants this fault on this node. The answer is `Answer`, once the agent there has begun."""

    who: Name
    job: Name
    right: Name  # the job's chaos token
    node: Name  # one life of an agent
    fault: ChaosFault


class ChaosOrder(msgspec.Struct, frozen=True, array_like=True, tag="chaos order"):
    """From the coordinator to an agent."""

    number: Count
    who: Name
    fault: ChaosFault


class ChaosBegun(msgspec.Struct, frozen=True, array_like=True, tag="chaos begun"):
    """From an agent: it is about to do it; or why it cannot."""

    number: Count
    done: bool
    text: Reason


def right_digest(right: str) -> str:
    """What the rules of a job keep of its chaos token.

    >>> right_digest("chaos-1") != right_digest("chaos-2")
    True
    """
    return blake2b(right.encode(), digest_size=16, person=b"outlast right").hexdigest()
