"""From evidence to cause: which failure came first, what it was, and which others are its consequences.

    diagnosis = diagnose([Evidence(rank=0, exit_code=1, log=(…)), …], catalogue)
    diagnosis.root.cause.title

The kernel's word counts before an exception, that before a line in the log, and that before a bare exit code. What
names a cause counts before what merely says that the process was hit (`confirmation`), and that before what says that
another one had failed before (`cascade`). A signal that says no more than that it hit the process counts last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from outlast.diagnosis.catalogue import Catalogue, Domain, Outlook, Proposal, Role, Signature, distinct
from outlast.diagnosis.evidence import Evidence

SHOWN = 300  # characters of the line that gives a cause away
ROLES = {Role.ROOT: 0, Role.CONFIRMATION: 1, Role.CASCADE: 2}
LAST = len(ROLES)
EVER = 10**9  # lines: more than any log has
KERNEL, RAISED, LOGGED, TYPE, EXIT = range(5)  # where a cause was seen, the most telling first


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What a failure was, in the words of the catalogue."""

    name: str
    title: str
    role: Role = Role.ROOT
    domain: Domain = Domain.USER_CODE
    outlook: Outlook = Outlook.UNKNOWN
    explain: str = ""
    advice: str = ""
    strategy: Proposal | None = None
    seen: str = ""  # the line, or the code, that gave it away

    @classmethod
    def of(cls, signature: Signature, seen: str) -> Cause:
        return cls(
            name=signature.name,
            title=signature.title,
            role=signature.role,
            domain=signature.domain,
            outlook=signature.outlook,
            explain=signature.explain,
            advice=signature.advice,
            strategy=signature.strategy,
            seen=" ".join(seen.split())[:SHOWN],
        )


class Finding(msgspec.Struct, frozen=True):
    """One worker's failure with its cause."""

    evidence: Evidence
    cause: Cause
    others: tuple[Cause, ...] = ()  # what else was seen there, the likelier first


class Diagnosis(msgspec.Struct, frozen=True):
    """The root, and what followed from it in the order in which it happened."""

    root: Finding
    cascade: tuple[Finding, ...] = ()


def diagnose(evidence: Sequence[Evidence], catalogue: Catalogue) -> Diagnosis:
    """The causes of all failures of one generation, of which there is one at least."""
    told = [replace(each, log=tuple(distinct(each.log))) for each in evidence]
    narrowed = catalogue.narrowed(line for each in told for _, lines in _places(each) for line in lines)
    found = (replace(find(brief, narrowed), evidence=whole) for brief, whole in zip(told, evidence, strict=True))
    findings = sorted(found, key=order)
    root, *rest = findings
    return Diagnosis(root, tuple(sorted(rest, key=lambda finding: finding.evidence.at)))


def order(finding: Finding) -> tuple[int, float]:
    """The root first: the earliest of those that are nobody else's consequence."""
    return (finding.cause.role is Role.CASCADE, finding.evidence.at)


def find(evidence: Evidence, catalogue: Catalogue) -> Finding:
    """The cause of one worker's failure.

    >>> find(Evidence(rank=0, exit_code=3), Catalogue([])).cause.title
    'exit code 3'
    """
    ranked = sorted(_seen(evidence, catalogue), key=lambda each: each[0])
    by_name: dict[str, Cause] = {}
    for _, cause in ranked:
        by_name.setdefault(cause.name, cause)
    causes = list(by_name.values()) or [_unknown(evidence)]
    return Finding(evidence, causes[0], tuple(causes[1:]))


Rank = tuple[int, int, int, int]


def _seen(evidence: Evidence, catalogue: Catalogue) -> Iterator[tuple[Rank, Cause]]:
    early = evidence.step is None or evidence.step <= 0
    for place, lines in _places(evidence):
        for match in catalogue.search(lines):
            if early or not match.signature.first_steps:
                rank = (ROLES[match.signature.role], place, -match.line, -match.length)
                yield rank, Cause.of(match.signature, lines[match.line])
    named = catalogue.of_exception(evidence.exception) if evidence.exception else None
    if named is not None and (early or not named.first_steps):
        yield (ROLES[named.role], TYPE, 0, 0), Cause.of(named, _raised(evidence).partition("\n")[0])
    if evidence.hung:
        yield (ROLES[Role.ROOT], LOGGED, -EVER, 0), _hang(evidence)  # whatever stands in its log
    elif evidence.exit_code is not None:
        known = catalogue.of_exit(evidence.exit_code)
        if known is not None:
            # An abort that the log explains by another's failure is that one's consequence.
            role = LAST if known.role is Role.CONFIRMATION else ROLES[known.role]
            yield (role, EXIT, 0, 0), Cause.of(known, exit_text(evidence.exit_code))


def _places(evidence: Evidence) -> tuple[tuple[int, Sequence[str]], ...]:
    return (
        (KERNEL, (*evidence.kernel, *evidence.gpus)),
        (RAISED, _raised(evidence).splitlines()),
        (LOGGED, evidence.log),
    )


def _raised(evidence: Evidence) -> str:
    return f"{evidence.exception}: {evidence.message}" if evidence.exception else evidence.message


def _hang(evidence: Evidence) -> Cause:
    return Cause(
        name="hang",
        title="the rank hung",
        domain=Domain.FRAMEWORK,
        outlook=Outlook.MAY_HELP,
        explain="It made no progress within its timeout and was killed.",
        advice="Its stack is below; if that is in a collective, look for the rank that is not.",
        seen=evidence.hung[:SHOWN],
    )


def _unknown(evidence: Evidence) -> Cause:
    if evidence.exception:
        first = _raised(evidence).partition("\n")[0]
        return Cause(
            name="exception",
            title=evidence.exception,
            explain="The script ended with an exception that no signature of the catalogue knows.",
            advice="The traceback says where.",
            seen=first[:SHOWN],
        )
    code = evidence.exit_code
    title = exit_text(code) if code is not None else "unknown"
    if evidence.log:
        advice = "Read the last lines of its log."
    else:
        advice = "Give --log-dir with --redirects=3 (or --tee=3), so that the last lines of each rank can be read."
    return Cause(
        name="unknown",
        title=title,
        explain="No signature of the catalogue knows what was seen of it.",
        advice=advice,
        seen=title,
    )


def exit_text(code: int) -> str:
    """An exit code, or a signal, in words.

    >>> exit_text(3), exit_text(-9)
    ('exit code 3', 'signal 9 (SIGKILL)')
    """
    import signal

    if code >= 0:
        return f"exit code {code}"
    name = next((each.name for each in signal.Signals if each == -code), "unknown")
    return f"signal {-code} ({name})"
