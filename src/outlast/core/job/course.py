"""The course of a job: generations are formed, run, are stopped; and the job ends.

Rules only: whatever happens, `settle` applies them until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from outlast.core.job.commands import Remember
from outlast.core.job.generation import Generation
from outlast.core.job.phase import Phase
from outlast.core.job.planned_change import belongs_on_disk
from outlast.core.job.progress import workers_gone
from outlast.core.job.replies import Replies
from outlast.core.job.state import JobState
from outlast.core.membership.member import Member, names_of
from outlast.core.membership.roster import assign, last_ranks, line_up
from outlast.core.node_checks.checks import Fitness
from outlast.core.node_checks.table import notice, summary
from outlast.core.recovery.failures import facts_of, root_first, seconds_ago, shortened
from outlast.diagnosis.observation import Observation
from outlast.events.events import (
    CoordinatorTookOver,
    Ending,
    GenerationEnding,
    GenerationFormed,
    HangNamed,
    JobOver,
    NodeHeldBack,
    NodeLetBack,
    QuorumMissing,
    WorkerFailed,
)
from outlast.events.reasons import (
    ChangeReason,
    EndReason,
    JoinedNodes,
    MissingNodes,
)
from outlast.events.sentences import lacking, needed
from outlast.protocol.failures import Failure
from outlast.protocol.generations import Stop
from outlast.protocol.membership import (
    Over,
)


class JobCourse:
    """The rules of one job. `caught_up`: called when a generation was taken over, to hear what its members say."""

    def __init__(self, state: JobState, replies: Replies, caught_up: Callable[[float], None]) -> None:
        self._state = state
        self._replies = replies
        self._caught_up = caught_up

    def deadline(self) -> float | None:
        """When `Tick` is due, if nothing else happens before."""
        s = self._state
        if s.phase is Phase.OVER or s.resigned:
            return None
        door, free = s.admissions, s.succession.free
        back = s.recovery.evictions.deadline()
        times: list[float | None]
        if s.succession.powerless:
            times = [s.succession.powerless.deadline(), s.empty]
        elif s.phase is Phase.STOPPING:
            times = [free, *s.nodes.ghosts.values()]
        elif s.phase is Phase.FORMING:
            last_call = None if door.gate.busy else door.last_call  # a check is waited for, however long it takes
            times = [free, last_call, door.pend, s.empty, back, *s.nodes.ghosts.values()]
        elif s.phase is Phase.GATHERING:
            times = [free, s.empty]
        else:
            times = [door.last_call, door.pend, s.empty, back]
            times += [s.current.inquiry.deadline(), s.current.change.deadline()]
        if not s.succession.powerless:
            times.append(door.gate.deadline())
        return min((t for t in times if t is not None), default=None)

    def settle(self, now: float) -> None:
        """Apply the rules until nothing changes."""
        s = self._state
        if s.phase is Phase.OVER or not self.may_decide(now):
            return
        if s.succession.free is not None and now >= s.succession.free:
            s.succession.free = None
        if (back := s.recovery.evictions.deadline()) is not None and now >= back:
            self.let_back(now)
        s.admissions.settle(now)
        self.examine(now)
        phase = None
        while phase is not s.phase:
            phase = s.phase
            if phase is Phase.RUNNING:
                self.while_running(now)
            elif phase is Phase.STOPPING:
                self.while_stopping(now)
            elif phase is Phase.FORMING:
                self.while_forming(now)
            elif phase is Phase.GATHERING:
                self.while_gathering(now)

    def may_decide(self, now: float) -> bool:
        s = self._state
        powerless = s.succession.powerless
        if s.authority.acts(now):
            powerless.end()
            return True
        if self.is_deserted(now):
            return False
        todo = powerless.wait(now)
        if not todo:  # every heartbeat comes by here: a look at all nodes for each would keep a large job powerless
            return False
        roster = s.current.roster
        here = len(roster if s.phase is Phase.GATHERING else s.nodes.here(roster))
        newest = s.authority.newest
        missing = QuorumMissing(generation=s.generation, here=here, size=newest.size if newest is not None else 0)
        if missing.here == missing.size:
            # All are connected, and say nothing: the only one is waited for, however long it is stopped.
            powerless.begin(now)
        elif todo == "say" and s.nodes.connected:
            s.out.publish(missing)
        elif todo == "give up":
            waited = f"for {s.rules.pend_timeout:g} s (pend_timeout)"
            self.end(False, Ending.NO_QUORUM, f"{lacking(missing)}, {waited}", now)
        return False

    def is_deserted(self, now: float) -> bool:
        """Whether nobody has been here for too long: then the job is over."""
        s = self._state
        if s.empty is None or now < s.empty:
            return False
        if s.rules.max_nodes == 1 and any(node.leaving for node in s.nodes.values()):
            self.end(False, Ending.STOPPED, "it was told to stop", now)
        else:
            self.end(False, Ending.NO_NODES, "no node is left", now)
        return True

    def while_gathering(self, now: float) -> None:
        s = self._state
        newest, current = s.authority.newest, s.current
        assert newest is not None
        if self.is_deserted(now):
            return
        if not s.succession.gathering.took_over:
            self.take_over(now)
        missing = newest.size - len(current.roster)
        if missing and s.succession.free is not None:
            return
        absent = s.succession.gathering.close()
        if current.is_closed:
            s.phase = Phase.FORMING
            return
        current.run()
        s.phase = Phase.RUNNING
        reasons, current.reasons = current.reasons, []
        for reason in reasons:
            self.depart(reason)
        if missing:
            current.unfinished.add("")  # nobody knows whether those who are missing had finished
            self.depart(MissingNodes(missing, newest.size, absent))
        else:
            taken = CoordinatorTookOver(generation=current.number, term=s.term.number, nodes=newest.size)
            s.out.publish(taken)
        self._caught_up(now)

    def take_over(self, now: float) -> None:
        """From here on no other coordinator acts."""
        s = self._state
        s.succession.take_over(now)
        s.out.add(Remember(s.memory()))
        for name, node in s.nodes.here():
            self._replies.ack(name, node, now)
            s.out.send(name, self._replies.charter(name, now))

    def while_running(self, now: float) -> None:
        s = self._state
        self.inquire(now)
        current, door = s.current, s.admissions
        if current.has_finished:
            self.gone(now)
            self.end(True, Ending.FINISHED, "every worker finished", now)
        elif current.change.planned:
            door.last_call = None  # a check that has just ended set it; nobody is called while a change is planned
            if ends := current.change.outcome(now):
                self.depart(ends)
        elif s.nodes.ready and len(current.unfinished) == len(current.roster):
            # Nobody has finished yet: more nodes are worth the interruption.
            ready = self.admitted(now)
            size = door.world(len(current.roster) + len(ready))
            if size <= len(current.roster):
                door.last_call = None
            elif size == door.world(door.most) or door.is_due(now):
                self.plan(JoinedNodes(names_of(ready.values())), now)
        else:
            door.last_call = None

    def while_stopping(self, now: float) -> None:
        s = self._state
        current = s.current
        if s.nodes.waiting:
            return
        self.gone(now)
        if current.has_finished:
            self.end(True, Ending.FINISHED, "every worker finished", now)
            return
        if s.succession.free is not None:
            return
        if current.failures and not current.reasons:
            if any(failure.pending for failure in current.failures):
                return  # what to do about it is being asked; a node that does not answer is lost in the end
            current.close()
            if not self.try_again(now):
                return
        current.close()
        s.phase = Phase.FORMING
        s.admissions.muster(planned=current.ends_by_plan)
        size = s.admissions.world(len(s.nodes.ready))
        if size and s.authority.settled:
            self.let_in(now, at_once=True)

    def gone(self, now: float) -> None:
        """No worker is alive: say how far they came, as far as their nodes could tell."""
        s = self._state
        if s.current.gone:
            return
        s.current.gone = True
        nodes = [s.nodes[name] for name in s.current.roster if s.nodes[name].report.clear]
        s.out.publish(workers_gone(s.generation, [(node.report.training, node.clock(0.0)) for node in nodes], now))

    def try_again(self, now: float) -> bool:
        """Workers have failed, and nobody else is to blame: do what the root's strategy says, or end the job."""
        s = self._state
        current, recovery = s.current, s.recovery
        failures = current.failures = root_first(current.failures)
        failed = s.last_fault = facts_of(failures[0])
        ago = seconds_ago(failures[0], now)
        s.out.publish(WorkerFailed(generation=current.number, failure=failed, followers=len(failures) - 1, ago=ago))
        if spent := recovery.spent(failures):
            self.end(False, Ending.FAILED, spent, now, final=recovery.budget.is_final(failures))
            return False
        home = current.home_of(failures[0].rank, {name: s.nodes[name].join.nproc for name in current.roster})
        node = s.nodes[home] if home is not None else None
        others = len(s.admissions.available) - (home in s.admissions.available)
        decided = recovery.restart(failures, node, others=others, generation=current.number, now=now)
        if home is not None and (decided.excluded or decided.kept):
            s.admissions.gate.doubt(home)
        if home is not None and decided.excluded is not None:
            s.admissions.place(home)
            s.out.release(decided.excluded)
        s.out.publish(decided)
        return True

    def let_back(self, now: float) -> None:
        """Places that were left out for a while may be used again, on probation."""
        s = self._state
        back, out = s.recovery.evictions.settle(now)
        for name, node in s.nodes.items():
            if node.place in back:
                s.admissions.gate.doubt(name)
                s.out.publish(NodeLetBack(generation=s.generation, node=node.name))
            if node.place in back | out:
                s.admissions.place(name)

    def while_forming(self, now: float) -> None:
        s = self._state
        door = s.admissions
        door.muster(planned=s.current.ends_by_plan)
        size = door.world(len(s.nodes.ready))
        if not size:
            door.lift()
            size = door.world(len(s.nodes.ready))
        if self.is_deserted(now):
            return
        if not size:
            self.wait_for_more(now)
        elif not s.authority.settled or s.nodes.waiting or s.succession.free is not None:
            # The last generation is still being told of, or workers of another may be alive.
            door.last_call = door.pend = None
        else:
            door.pend = None
            if door.is_full or door.is_due(now):
                self.let_in(now)

    def wait_for_more(self, now: float) -> None:
        """Fewer than MIN nodes are ready."""
        s = self._state
        door = s.admissions
        door.last_call = None
        if door.pend is None:
            door.pend = now + s.rules.pend_timeout
            waiting = door.waiting(s.generation)
            s.out.want(waiting)
            if any(node.connected and not node.leaving for node in s.nodes.values()):
                s.out.publish(waiting)
        elif now >= door.pend:
            waiting = door.waiting(s.generation)
            waited = f"{s.rules.pend_timeout:g} s (pend_timeout)"
            self.end(False, Ending.TOO_FEW_NODES, f"waited {waited} for {needed(waiting)}", now)

    def form(self, size: int, now: float) -> None:
        s = self._state
        nodes, before, door, recovery = s.nodes, s.current, s.admissions, s.recovery
        ready = [node.candidate() for node in door.admitted(before.roster).values()]
        names = {name: nodes[name].name for name in before.roster}
        last = last_ranks(before.roster, names, {name: node.name for name, node in nodes.ready.items()})
        members = line_up(ready, size, last=last, infra=s.rules.use_infra_group_rank)
        number = s.authority.next_generation(s.term.number)
        s.formed += 1
        recovery.charged = recovery.restarts
        roster = assign(members, generation=number, restart_count=recovery.restarts, fresh=recovery.fresh)
        recovery.fresh = False
        door.last_call = door.pend = None
        nodes.waiting = set(roster)
        door.gate.withdraw(roster, now)
        s.calibration.regroup(roster)
        s.current = Generation(s.rules, number, roster, before=before)
        s.current.run()
        s.phase = Phase.RUNNING
        s.succession.form({name: nodes[name].join for name in roster}, number, now)
        s.out.add(Remember(s.memory()))
        for name in roster:
            node = nodes[name]
            node.sent = number
            del nodes.ready[name]
            self._replies.start(name, node, now)
        door.formed()
        for node in (nodes[name] for name in before.roster if name in door.held_back):
            lost = node.join.nproc - (node.report.kept or 0)
            s.out.publish(NodeHeldBack(generation=number, node=node.name, lost=lost, workers=node.join.nproc))
        newest = s.snapshots.newest
        s.out.publish(
            GenerationFormed(
                generation=number,
                nodes=tuple(member.name for member in members),
                ranks=s.current.world_size,
                spares=len(nodes.ready),
                restarts=recovery.restarts,
                restore_step=newest.step if newest is not None else None,
            )
        )

    def failed(self, failures: tuple[Failure, ...], now: float) -> None:
        s = self._state
        s.current.fail(failures)
        if s.phase is Phase.RUNNING and failures:
            self.stop(facts_of(failures[0]), ago=seconds_ago(failures[0], now))

    def plan(self, why: ChangeReason, now: float) -> None:
        """The generation is to end, and nobody has failed: first let all ranks save, if it runs and they can."""
        s = self._state
        if not s.rules.planned_change_timeout or s.phase not in (Phase.RUNNING, Phase.GATHERING):
            self.depart(why)
            return
        if s.phase is Phase.GATHERING:
            return  # it is planned when all are here: whoever wants it says so then
        s.admissions.last_call = None
        current = s.current
        durable = belongs_on_disk(s.rules, (s.nodes[name] for name in current.roster))
        if halt := current.change.plan(why, current.unfinished, durable=durable, now=now):
            self._replies.tell_all(halt)

    def depart(self, why: EndReason, *, ago: float = 0.0) -> None:
        """The generation ends, and not because a worker failed: whatever fails now fails because of that."""
        s = self._state
        if not s.current.depart(why):
            return
        if s.phase is Phase.RUNNING:
            self.stop(why, ago=ago)
        elif s.phase is Phase.STOPPING:
            s.out.publish(GenerationEnding(generation=s.generation, reason=why, also=True, ago=ago))

    def stop(self, why: EndReason, *, ago: float = 0.0) -> None:
        s = self._state
        s.phase = Phase.STOPPING
        s.admissions.last_call = None
        s.out.publish(GenerationEnding(generation=s.generation, reason=why, ago=ago))
        s.out.add(Remember(s.memory()))
        for name, node in s.nodes.here(s.current.roster):
            s.out.send(name, Stop(s.generation, s.term.number, graceful=node.leaving))

    def end(self, success: bool, ending: Ending, reason: str, now: float, *, final: bool = False) -> None:
        """The job is over, unless it is already. `final`: it would fail again."""
        s = self._state
        if s.phase is Phase.OVER:
            return
        s.phase, s.ending = Phase.OVER, ending
        failures = () if success else shortened(s.current.failures)
        s.out.publish(
            JobOver(
                generation=s.generation,
                success=success,
                ending=ending,
                reason=reason,
                seconds=now - s.began,
                generations=s.formed,
                restarts=s.recovery.restarts,
                failure=facts_of(failures[0]) if failures and ending is Ending.FAILED else None,
            )
        )
        tried = () if success else tuple(s.recovery.budget.tried)
        shown = s.rules.check_only or not (success or s.formed)
        table = s.admissions.gate.table if shown else ""
        s.outcome = Over(success, reason, failures, term=s.term.number, tried=tried, table=table, final=final)
        s.out.add(Remember(s.memory()))
        for name, _ in s.nodes.here():
            s.out.send(name, s.outcome)

    def let_in(self, now: float, *, at_once: bool = False) -> None:
        """Form a generation of those that may be let in; unless `at_once`, a check of others is waited for."""
        s = self._state
        gate = s.admissions.gate
        if gate.busy and not at_once:
            return
        size = s.admissions.world(len(self.admitted(now, check=not at_once)))
        if size and (at_once or not gate.busy):
            self.form(size, now)

    def admitted(self, now: float, *, check: bool = True) -> Mapping[str, Member]:
        """Those of the ready nodes that may be let in; the others are checked, if no check is under way."""
        s = self._state
        admitted = s.admissions.admitted(s.current.roster)
        beside = s.phase is Phase.RUNNING
        if check and s.admissions.begin_check(admitted, s.generation, s.term.number, beside=beside):
            self.examine(now)
        return admitted

    def examine(self, now: float) -> None:
        """Go on with the check that is under way, and do what it comes to."""
        s = self._state
        s.admissions.probe(now)
        result = s.admissions.conclude(s.generation, now)
        if result is None:
            return
        ready = s.nodes.ready
        if s.rules.check_only:
            passed = all(row.standing is Fitness.GOOD for row in result.rows.values())
            self.end(passed, Ending.CHECKED, summary(result), now)
            return
        if line := notice(result, ready, self.host()):
            enough = s.admissions.world(len(ready))
            self._replies.tell_elsewhere(line if enough else f"{line}; waiting for at least {s.rules.min_nodes}")
        if not (s.formed or ready) and result.of(Fitness.FAULTY):
            self.end(False, Ending.UNFIT, f"no node is fit: {summary(result)}", now)

    def host(self) -> str:
        """The name of the node in whose log ours is."""
        s = self._state
        return s.nodes[s.term.by].name if s.term.by in s.nodes else ""

    def inquire(self, now: float) -> None:
        """Ranks are late: ask where all of them are, and name the one that the others wait for."""
        s = self._state
        inquiry = s.current.inquiry
        if inquiry.is_over(now) and (finding := inquiry.conclude()) is not None:
            verdict = finding.verdict
            named = HangNamed(
                generation=s.generation,
                ranks=verdict.culprits,
                nodes=verdict.nodes,
                kind=verdict.kind.value,
                where=verdict.where,
                sentence=verdict.sentence,
                ago=finding.idle,
                stacks=finding.stacks,
            )
            s.out.publish(named)
            if finding.named is not None:
                self._replies.tell_all(finding.named)
        if inquiry.is_wanted(now):
            members = s.nodes.here(s.current.roster)
            asked = {name: self.unseen(name, node) for name, node in members if not node.clear}
            look = inquiry.begin(asked, now)
            for name in asked:
                s.out.send(name, look)

    def unseen(self, name: str, node: Member) -> Observation:
        """What is known of the ranks of a member that says nothing."""
        s = self._state
        first = s.current.roster[name].first_rank
        return Observation(rank=first, node=node.name, also=tuple(range(first + 1, first + node.join.nproc)))
