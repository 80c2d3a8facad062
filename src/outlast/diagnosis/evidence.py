"""What is known of a worker that failed. Plain data: the agent collects it, `cause.py` judges it."""

from __future__ import annotations

import msgspec


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One failed worker. What could not be seen is left empty, and proves nothing.

    >>> Evidence(rank=3, exit_code=-9).signal
    9
    """

    rank: int
    node: str = ""
    at: float = 0.0  # when it failed, on a clock that all of those compared share
    exit_code: int | None = None  # negative: the signal; None: not known, as in the logs of others
    exception: str = ""  # the type, as Python names it
    message: str = ""  # what the exception says, or the error file
    traceback: str = ""
    log: tuple[str, ...] = ()  # its last lines
    kernel: tuple[str, ...] = ()  # what the kernel says of this worker or its devices since it was started
    gpus: tuple[str, ...] = ()  # how those of its node are, if it may have to do with them
    hung: str = ""  # where and for how long, if it was ended for that
    ran: float | None = None  # seconds
    step: int | None = None  # the last one

    @property
    def signal(self) -> int:
        """The signal that ended it; 0: none did."""
        return -self.exit_code if self.exit_code is not None and self.exit_code < 0 else 0
