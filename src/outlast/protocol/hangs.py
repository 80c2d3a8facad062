"""Late ranks: where they are, who blocks the others; and the calibration of their timeouts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from outlast.diagnosis.observation import PLACES, Observation
from outlast.protocol.fields import Count, Name, Reason, Time

MOST_CULPRITS = 64  # that are told to agents by their ranks


class Overdue(msgspec.Struct, frozen=True, array_like=True):
    """Ranks of a node are late. Repeated in its reports for a while, so that whoever coordinates hears of it."""

    number: Count  # grows with every time that some are newly late
    ending: bool  # by a timeout that ends them; else it is a suspicion


class Measures(msgspec.Struct, frozen=True, array_like=True):
    """How long things took at most, on one node or on all: seconds, as `core/hangs/rank_clocks.py` names them."""

    round: Count  # of calibration: all nodes are asked again for each
    longest: Annotated[dict[Name, Time], msgspec.Meta(max_length=128)] = {}


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """Where the ranks of a node are: the answer to `Look`."""

    generation: Count
    number: Count
    observations: Annotated[tuple[Observation, ...], msgspec.Meta(max_length=PLACES)]


class Measure(msgspec.Struct, frozen=True, array_like=True, tag="measure"):
    """Say what your workers have measured: a rank somewhere asked for a calibration."""

    round: Count


class Agreed(msgspec.Struct, frozen=True, array_like=True, tag="agreed"):
    """What all ranks have measured together."""

    measures: Measures


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """Say where your ranks are, at once: somewhere in the job one is late."""

    generation: Count
    number: Count  # of the inquiry
    interrupt: bool  # the generation is about to end: ranks may be disturbed to see where they are


class Named(msgspec.Struct, frozen=True, array_like=True, tag="named"):
    """Who makes the job hang, by what was seen of all ranks. Those who are late, and the culprits, are to be ended."""

    generation: Count
    number: Count
    culprits: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_CULPRITS)]
    sentence: Reason
