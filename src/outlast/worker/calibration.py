"""The measured times of a rank, in a form that checkpoints can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.worker.session import Session


class Calibration:
    """What the ranks have measured, for your checkpoints: the next run then begins with timeouts that fit.

    It is a `Stateful` of torch.distributed.checkpoint, and its state is the same on all ranks.

    >>> from outlast.worker.session import session
    >>> state = {"model": ..., "outlast": session.calibration.state_dict()}
    >>> session.calibration.load_state_dict(state["outlast"])
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def state_dict(self) -> dict[str, str]:
        """One text under one name: a checkpoint is loaded by the names that are there before, and sections are not."""
        self._session._attach()
        slot = self._session._slot
        longest = dict(slot.read().longest)
        for what, seconds in json.loads(slot.agreed() or "{}").items():
            longest[what] = max(seconds, longest.get(what, 0.0))
        return {"longest": json.dumps(longest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these times, and have timeouts made of them."""
        self._session._remember(json.loads(state["longest"]))
        self._session.calibrate()
