"""State that is another one on each rank, under the same names: it is saved under names of the rank.

All else in a checkpoint is known to be replicated, or to know where its parts belong (DTensor), and so can be put
together on any number of ranks. What some frameworks split knows nothing of the kind: it can only go back to where it
came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_LABEL = re.compile(r"rank-\d+-of-(\d+)")


class PerRank:
    """Wraps a value of the state that is another one on each rank: a split model, its optimizer, random numbers.

        state = {"model": outlast.PerRank(model), "optim": outlast.PerRank(optimizer), "epoch": 0}
        start = ckpt.restore(state)
        ...
        ckpt.save(step, state)

    The value has `state_dict` and `load_state_dict`, or is a dictionary, which is filled with what was loaded. Each
    rank saves all of it (`optim.rank-3-of-8.…`) and gets back its own, exactly. That takes as many ranks as there were:
    on another number `restore` raises ValueError, and changes nothing. Values beside it are not bound to that.
    """

    def __init__(self, value: Any) -> None:
        has_state = all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))
        if not (has_state or isinstance(value, dict)):
            raise ValueError(
                f"PerRank takes something with state_dict and load_state_dict, or a dictionary, "
                f"not {type(value).__name__}: put it into a dictionary"
            )
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.value if isinstance(self.value, dict) else self.value.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if isinstance(self.value, dict):
            self.value.clear()
            self.value.update(state_dict)
        else:
            self.value.load_state_dict(state_dict)


def label(rank: int, world: int) -> str:
    """What stands in a name before what a rank has for itself.

    >>> label(3, 8)
    'rank-3-of-8'
    """
    return f"rank-{rank}-of-{world}"


def saved_by(keys: Iterable[object]) -> int:
    """How many ranks have saved something, each for itself, by its keys; 0 if they are no such labels.

    >>> saved_by(["rank-0-of-2", "rank-1-of-2"]), saved_by(["weight", 0])
    (2, 0)
    """
    found = [_LABEL.fullmatch(str(key)) for key in keys]
    worlds = {int(each[1]) for each in found if each is not None}
    return max(worlds) if worlds and None not in found else 0
