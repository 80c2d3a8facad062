"""From a failed worker's evidence to what is reported of it: its cause, and what is to be done about it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from msgspec.structs import replace

from outlast.agent.postmortem.evidence import account
from outlast.core.recovery.strategy import Rule, decide
from outlast.diagnosis import cause as causes
from outlast.diagnosis.catalogue import Catalogue
from outlast.diagnosis.cause import diagnose
from outlast.diagnosis.evidence import Evidence
from outlast.protocol.failures import FailoverStrategy, Failure, ReportedCause
from outlast.protocol.fields import LONGEST_REASON, sendable
from outlast.signatures import catalogue

COORDINATORS_PORT = (
    "Outlast's coordinator listens on port {0} (--master-port or --rdzv-endpoint). "
    "Let the script use env://, or MASTER_PORT, or give it another port."
)
TOLD = frozenset({signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
ENDED = ReportedCause(
    name="ended-by-us",
    title="ended by Outlast",
    role="cascade",
    domain="platform",
    outlook="helps",
    explain="It was told to end, because another rank of its node had failed.",
)


class Judge:
    """Of one node's failures.

    failure = Judge(signatures="").judged(failure, evidence, log="…/stderr.log", first=True)
    """

    def __init__(self, signatures: str, rules: Sequence[Rule] = (), *, coordinator_port: int = 0) -> None:
        self._signatures = signatures
        self._coordinator_port = coordinator_port
        self._rules = rules
        self._catalogue: Catalogue | None = None

    def prepare(self) -> None:
        """Read the catalogue, so that nobody waits for it when something has failed."""
        self._catalogue = catalogue(self._signatures)

    def judged(self, failure: Failure, evidence: Evidence, *, log: str, first: bool, restarts: int = 0) -> Failure:
        """The failure with its cause and strategy, and with as much of the evidence as is worth sending.

        `first`: no other worker of this node had failed before, for then all others are told to end.
        """
        if self._catalogue is None:
            self.prepare()
        assert self._catalogue is not None
        told = not first and evidence.signal in TOLD
        cause = diagnose([replace(evidence, exit_code=None) if told else evidence], self._catalogue).root.cause
        if cause.name == "port-in-use" and self._coordinator_port and str(self._coordinator_port) in cause.seen:
            cause = replace(cause, advice=COORDINATORS_PORT.format(self._coordinator_port))
        if told and cause.name == "unknown":
            return replace(failure, cause=ENDED, account=account(evidence, log, brief=True))
        proposed = FailoverStrategy(cause.strategy.value) if cause.strategy is not None else FailoverStrategy.NORMAL
        failure = replace(failure, cause=as_message(cause), account=account(evidence, log, brief=not first))
        strategy, decided = decide(failure, proposed, self._rules, restarts)
        return replace(failure, strategy=strategy, decided=decided)


def as_message(cause: causes.Cause) -> ReportedCause:
    """A cause as it is sent."""
    texts = (cause.explain, cause.advice, cause.seen)
    explain, advice, seen = (sendable(text)[:LONGEST_REASON] for text in texts)
    return ReportedCause(
        name=cause.name[:255],
        title=cause.title[:LONGEST_REASON],
        role=cause.role.value,
        domain=cause.domain.value,
        outlook=cause.outlook.value,
        explain=explain,
        advice=advice,
        seen=seen,
    )
