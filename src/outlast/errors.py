"""The errors that callers of Outlast catch. Each says what happened and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast.protocol.failures import Failure
    from outlast.verdict import Verdict


class JobFailed(Exception):
    """The job ended without success. The message is what a person should read; `failures` is the evidence.

    Raised by `outlast.run.main`; the first of `failures` is the root, as torchrun's summary names it. `verdict`, where
    something failed: what it was and what to do, with a `text()` for people. `final`: it would fail again, so do not
    requeue it.

        try:
            outlast.run.main(["train.py"])
        except outlast.JobFailed as failed:
            print(failed.reason, failed.failures)
    """

    def __init__(
        self,
        reason: str,
        failures: Sequence[Failure] = (),
        *,
        summary: str = "",
        verdict: Verdict | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(summary or reason)
        self.reason = reason
        self.failures = tuple(failures)
        self.verdict = verdict
        self.final = final
