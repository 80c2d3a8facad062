"""Events in words: the one place where sentences about a job are made."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from outlast.events import events, reasons
from outlast.events.phrases import NAMES_SHOWN, amount, count, listed

BRIEF = 200  # characters of why a node is excluded


@singledispatch
def why(reason: object) -> str:
    """A reason in words.

    >>> why(reasons.LostNode("b", "its connection closed"))
    'node b was lost: its connection closed'
    """
    raise TypeError(f"no words for {reason!r}")


@singledispatch
def sentence(event: object) -> str:
    """An event in words; several lines for a table.

    >>> sentence(events.GenerationFormed(generation=1, nodes=("a",), ranks=2, spares=0, restarts=0))
    'generation 1: 1 node, 2 ranks (a)'
    """
    raise TypeError(f"no words for {event!r}")


# -- reasons


@why.register
def _(failed: reasons.FailedRank) -> str:
    who, code = f"{failed.task or f'rank {failed.rank}'} on node {failed.node}", failed.exit_code
    if failed.hung:
        return f"{who} hung"  # where and how long was said when it was found
    # Ended together with another, it may have been stopped for that one while it was still telling of its own end.
    first = f"{failed.exception}, then " if code < 0 and failed.exception else ""
    return f"{who} failed ({first}{f'exit code {code}' if code >= 0 else f'signal {-code}'})"


@why.register
def _(lost: reasons.LostNode) -> str:
    return f"node {lost.node} was lost: {lost.how}"


@why.register
def _(gone: reasons.DepartedNode) -> str:
    return f"node {gone.node} left"


@why.register
def _(draining: reasons.DrainingNode) -> str:
    return f"node {draining.node} is draining"


@why.register
def _(_: reasons.ToldToStop) -> str:
    return "the job was told to stop"


@why.register
def _(fenced: reasons.FencedNode) -> str:
    return f"node {fenced.node} was cut off and stopped its workers"


@why.register
def _(stopped: reasons.StoppedWorkers) -> str:
    if stopped.late:
        return f"the workers of node {listed(stopped.nodes)} were told to stop"
    return f"the workers of {listed(stopped.nodes)} had been stopped"


@why.register
def _(ahead: reasons.NodesAhead) -> str:
    return f"{listed(ahead.nodes)} had moved on from it"


@why.register
def _(missing: reasons.MissingNodes) -> str:
    absent = f" ({', '.join(missing.nodes[:NAMES_SHOWN])})" if missing.nodes else ""
    return f"{count(missing.missing, 'node')} of {missing.size} did not come back{absent}"


@why.register
def _(joined: reasons.JoinedNodes) -> str:
    return f"{listed(joined.nodes)} joined"


@why.register
def _(request: reasons.RestartRequested) -> str:
    return f"{request.who} asked for a restart"


@why.register
def _(request: reasons.ScaleRequested) -> str:
    return f"{request.who} asked for {count(request.nodes, 'node')}"


@why.register
def _(request: reasons.RankRequest) -> str:
    who = f"rank {request.rank} on node {request.node}"
    asked = "excludes its node" if request.action == "exclude_node" else "asked for a restart"
    return f"{who} {asked}: {request.text}"


@why.register
def _(straggler: reasons.ExcludedStraggler) -> str:
    return f"node {straggler.node} is excluded for {straggler.seconds:g} s: {straggler.slower}"


@why.register
def _(_: reasons.InheritedChange) -> str:
    return "a change was planned"


@why.register
def _(planned: reasons.PlannedEnd) -> str:
    change = whys(planned.changes)
    if planned.saved is reasons.Saved.ALL:
        return f"{change}; all ranks have saved step {planned.step}"
    if planned.saved is reasons.Saved.SOME:
        return f"{change}; not all ranks could save"
    if planned.saved is reasons.Saved.LATE:
        return f"{change}; not all ranks have come to a save within {planned.seconds:g} s (planned_change_timeout)"
    return change


def whys(several: Iterable[object]) -> str:
    """Several reasons in words."""
    return "; ".join(why(each) for each in several)


def diagnosed(failed: reasons.FailedRank) -> str:
    """What happened, and its cause where that says more."""
    says_more = failed.cause not in ("", "unknown", "hang")
    return f"{why(failed)}: {failed.title} ({failed.cause})" if says_more else why(failed)


# -- events


@sentence.register
def _(began: events.JobBegan) -> str:
    least = f"{began.least} to " if began.least < began.most else ""
    return f"the job began: {least}{count(began.most, 'node')}"


@sentence.register
def _(suspended: events.JobSuspended) -> str:
    return f"the job was suspended for {suspended.seconds:.0f} s"


@sentence.register
def _(began: events.TrainingBegan) -> str:
    step = f", first step {began.step}" if began.step is not None else ""
    return f"generation {began.generation} trains{step}"


@sentence.register
def _(progress: events.TrainingProgress) -> str:
    return f"generation {progress.generation}: step {progress.step}"


@sentence.register
def _(gone: events.WorkersGone) -> str:
    step = f", last step {gone.step}" if gone.step is not None else ""
    return f"generation {gone.generation}: no worker is alive{step}"


@sentence.register
def _(formed: events.GenerationFormed) -> str:
    spare = f", {formed.spares} spare" if formed.spares else ""
    size = f"{count(len(formed.nodes), 'node')}, {count(formed.ranks, 'rank')}{spare}"
    return f"generation {formed.generation}: {size} ({listed(formed.nodes)})"


@sentence.register
def _(ending: events.GenerationEnding) -> str:
    return why(ending.reason) if ending.also else f"generation {ending.generation} ends: {why(ending.reason)}"


@sentence.register
def _(planned: events.PlannedChange) -> str:
    return f"generation {planned.generation}: all ranks save before it ends ({whys(planned.changes)})"


@sentence.register
def _(taken: events.CoordinatorTookOver) -> str:
    return f"term {taken.term}: took over generation {taken.generation}, {count(taken.nodes, 'node')}"


@sentence.register
def _(missing: events.QuorumMissing) -> str:
    return f"{lacking(missing)}, and the others may be running without them: nothing is decided until more come"


def lacking(missing: events.QuorumMissing) -> str:
    """How many are here, of how many."""
    return f"only {missing.here} of the {missing.size} nodes of generation {missing.generation} are here"


@sentence.register
def _(waiting: events.WaitingForNodes) -> str:
    return f"waiting for {needed(waiting)}"


def needed(waiting: events.WaitingForNodes) -> str:
    """What is waited for, who is here, and what to do about those that are excluded."""
    unit = f" (in units of {waiting.unit})" if waiting.unit > 1 else ""
    here = f": {listed(waiting.ready)}" if waiting.ready else ""
    text = f"at least {count(waiting.least, 'node')}{unit}; {len(waiting.ready)} here{here}"
    if not waiting.excluded:
        return text
    named = "; ".join(f"{name} ({reason[:BRIEF]})" for name, reason in waiting.excluded.items())
    return f"{text}; excluded: {named}; to replace them, start the same command on other nodes"


@sentence.register
def _(joined: events.NodeJoined) -> str:
    return f"node {joined.node} joined, with {count(joined.workers, 'worker')}"


@sentence.register
def _(spare: events.SpareReady) -> str:
    return f"node {spare.node} waits as a spare"


@sentence.register
def _(refused: events.NodeRefused) -> str:
    return f"refused node {refused.node}: {refused.why}"


@sentence.register
def _(lost: events.NodeLost) -> str:
    return why(reasons.LostNode(lost.node, lost.how))


@sentence.register
def _(left: events.NodeLeft) -> str:
    return why(reasons.DepartedNode(left.node))


@sentence.register
def _(excluded: events.NodeExcluded) -> str:
    span = "the rest of the job" if excluded.seconds is None else f"{excluded.seconds:g} s"
    return f"node {excluded.node} is excluded for {span}: {excluded.why}"


@sentence.register
def _(held: events.NodeHeldBack) -> str:
    return (
        f"generation {held.generation} starts without node {held.node}, which lost {held.lost} of "
        f"{count(held.workers, 'worker')}; it replaces them and joins later (--ft-restart-policy=min-healthy)"
    )


@sentence.register
def _(kept: events.NodeKept) -> str:
    where = f"generation {kept.generation}: " if kept.generation else ""
    return f"{where}{kept.because}: {kept.why}"


@sentence.register
def _(back: events.NodeLetBack) -> str:
    return f"node {back.node} may be used again, on probation"


@sentence.register
def _(failed: events.WorkerFailed) -> str:
    more = f" ({count(failed.followers, 'failure')} followed from it)" if failed.followers else ""
    return f"generation {failed.generation}: {diagnosed(failed.failure)}{more}"


@sentence.register
def _(again: events.TaskRelaunched) -> str:
    memory = f", with {amount(again.memory)} of memory" if again.more_memory else ""
    number = f"restart {again.used} of {again.allowed} of its role"
    done = f"started again as life {again.life}{memory} ({number})"
    return f"generation {again.generation}: {diagnosed(again.failure)}; {done}"


@sentence.register
def _(restart: events.Restarting) -> str:
    what = diagnosed(restart.failure) if restart.diagnose else why(restart.failure)
    return f"{restarted(restart, with_failure=what)}"


def restarted(restart: events.Restarting, *, with_failure: str = "") -> str:
    """What is done about a failure; after the failure itself, if that is given."""
    number = f"restart {restart.number} of {restart.allowed}"
    done = ", everything restarted" if restart.anew else ""
    if restart.kept is not None:
        done = f"; {restart.kept.because}: {restart.kept.why}"
    elif restart.excluded is not None:
        seconds = restart.excluded.seconds or 0.0
        done = f", without node {restart.excluded.node} for {seconds:g} s: {restart.excluded.why}"
    by = f" ({restart.decided})" if restart.decided else ""
    return f"{number}{f': {with_failure}' if with_failure else ''}{done}{by}"


@sentence.register
def _(hang: events.HangNamed) -> str:
    return f"generation {hang.generation}: {hang.sentence}"


@sentence.register
def _(straggler: events.StragglerChanged) -> str:
    return f"generation {straggler.generation}: {straggler.sentence}"


@sentence.register
def _(calibrated: events.Calibrated) -> str:
    return calibrated.sentence


@sentence.register
def _(check: events.CheckBegan) -> str:
    return f"checking {listed(check.nodes)}"


@sentence.register
def _(check: events.CheckDone) -> str:
    return check.table


@sentence.register
def _(over: events.JobOver) -> str:
    took = f"{over.seconds:.1f} s, {count(over.generations, 'generation')}, {count(over.restarts, 'restart')}"
    return f"job {'succeeded' if over.success else 'failed'}: {over.reason} ({took})"
