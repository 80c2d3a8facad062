"""The processes and sockets around the node's decisions: events in, commands out."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

import msgspec

from outlast import rulebook
from outlast.agent import supervisor
from outlast.agent.coordinator_link.link import Link
from outlast.agent.coordinator_link.location import CoordinatorLocation
from outlast.agent.monitoring.checker import Checker
from outlast.agent.monitoring.hangs import Hangs
from outlast.agent.monitoring.pace import Pacing
from outlast.agent.monitoring.watch import HELD_UP, Hang, Limits, Watch
from outlast.agent.output.logs import JobLogs
from outlast.agent.postmortem.extension import Extension
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.guard import Guard
from outlast.agent.processes.place import Place
from outlast.agent.processes.ports import StorePorts
from outlast.agent.processes.worker_requests import WorkerRequests
from outlast.agent.processes.workers import Streams, WorkerGroup
from outlast.agent.snapshots.keeper import Keeper, Line, listen
from outlast.agent.snapshots.leftovers import sweep
from outlast.agent.warm_start.warming import warm
from outlast.agent.warm_start.zygote_process import startup
from outlast.board import Action, Request
from outlast.core.node.commands import (
    Agree,
    Announce,
    Blame,
    Command,
    Examine,
    Exit,
    HaltWorkers,
    Hangup,
    Host,
    Lease,
    Mandate,
    Observe,
    Respond,
    Retire,
    SetStride,
    Show,
    StartWorkers,
    StopWorkers,
    TakeMeasures,
    Tell,
)
from outlast.core.node.inputs import (
    Cleared,
    Connected,
    Disconnected,
    Event,
    Examined,
    Exited,
    Halting,
    Holds,
    Inquired,
    KeepsUp,
    Leave,
    Measured,
    NotHosted,
    Paced,
    Received,
    Wished,
)
from outlast.core.node.node import Node
from outlast.core.tick import Tick
from outlast.launch import Launch
from outlast.platforms.infrastructure import infra_rank
from outlast.protocol.failures import Failure
from outlast.protocol.fields import sendable, sendable_path
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Join, Leaving, Over, State, Wanted, Welcome, Wish
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.paces import Pace
from outlast.protocol.snapshots import Keeping
from outlast.protocol.succession import Standing
from outlast.settings.settings import Settings
from outlast.settings.values import termination_signal
from outlast.system.clock import now
from outlast.transport.commission import Tls
from outlast.workloads.torch_job import TorchWorkload
from outlast.workloads.workload import Attachments, Workload

log = logging.getLogger("agent")

NOT_STARTED = 126  # the exit code a shell gives to a command that it cannot execute
ONE_SIGNAL = 0.5  # seconds in which the same one, through a supervisor, is the same
INTERRUPTS = (signal.SIGINT, signal.SIGQUIT)  # what a person types: the job ends. Others drain this node.


class Agent:
    """One node's agent, from joining to its last word. Made within a running event loop.

    over = await Agent(launch, settings, logs=…).run()
    """

    def __init__(
        self, launch: Launch, settings: Settings, *, place: Place, logs: JobLogs, extension: Extension | None = None
    ) -> None:
        self._launch = launch
        self._settings = settings
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[Over] = self._loop.create_future()
        self._place = place
        self._name = place.name
        self._id = f"{self._name}-{secrets.token_hex(6)}"
        # A spare may wait in silence for days, a node that has finished for the others; one alone has no such news.
        self._level = logging.INFO if launch.max_nodes > 1 else logging.DEBUG
        self._infra_rank = launch.node_rank if launch.node_rank is not None else infra_rank(os.environ)
        self._ports = StorePorts(settings.store_ports, launch.store_port)
        self._node = Node(self._id, store_port=self._ports.promised, ranks=launch.nproc)
        self.seat = CoordinatorLocation(
            launch, settings, me=self._id, mandate=self._node.allegiance.mandate, failed=self._not_hosted
        )
        self._group: WorkerGroup | None = None
        self._finished: WorkerGroup | None = None  # all of its workers have succeeded; something of it may run on
        self._guard = Guard(places=launch.nproc)
        self._keeper = Keeper(
            place,
            linger=settings.snapshot_linger,
            level=settings.log_level,
            line=self._line_to_other_keepers(),
            keeps_up=lambda stride: self._feed(KeepsUp(stride)),
        )
        self._hurry: asyncio.Future[None] = self._loop.create_future()  # done when told twice to end
        self._workload: Workload = TorchWorkload(launch, settings)
        self._zygote = warm(self._workload, launch, settings)
        self._checker = Checker(
            launch, settings, zygote=lambda: self._zygote, found=lambda findings: self._feed(Examined(findings))
        )
        self._watch: Watch | None = None
        self._limits = Limits.of(settings)
        self._ending = termination_signal(settings.rank_termination_signal)
        self._longest: Mapping[str, float] = {}  # as all ranks of the job have measured it
        self._hangs: Hangs | None = None
        self._pacing: Pacing | None = None
        judge = Judge(
            settings.signatures, rulebook.read(settings.failover_rules), coordinator_port=launch.endpoint.port
        )
        self._extension = extension
        self._inquest = Investigation(self._name, launch.job, judge, extension, feed=self._feed, run=self._run)
        self._assignment: Assignment | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signal = signal.SIGTERM  # what workers get when they are asked to end
        self._stopped_by = ""  # the signal that this agent got
        self._told_unentered = False  # of sections with a time-out
        self._signalled_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._welcomed = False
        self._hung_up_since = float("nan")
        self._link = Link(
            lambda: self.seat.places(self._node.allegiance.successors),
            self.seat.token,
            tls=self.seat.tls,
            patience=settings.connect_timeout,
            choose=lambda standings: self._node.allegiance.choose(standings, now()),
            obeyed=lambda: self._node.allegiance.obeyed,
            connected=self._connected,
            received=self._received,
            disconnected=lambda: self._feed(Disconnected()),
            is_ours=self._node.allegiance.is_ours,
        )
        self._requests = WorkerRequests(lambda visitor, question: self._feed(Inquired(visitor, question)))

    def _line_to_other_keepers(self) -> Line | None:
        settings, launch = self._settings, self._launch
        listener = listen(loopback=launch.endpoint.loopback) if launch.max_nodes > 1 else None
        if listener is None:
            return None
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_ca) if settings.tls else None
        return Line(listener, self.seat.token, tls, settings.replicas)

    def _not_hosted(self, why: str) -> None:
        if not self._launch.endpoint.port:
            self.abandon(Over(False, why))
        else:
            log.error("%s; another node may host it", why)
            self._feed(NotHosted())

    @property
    def hurried(self) -> bool:
        """Whether somebody wants it to end at once."""
        return self._hurry.done()

    async def run(self) -> Over:
        """Take part in the job until it is over, or this node has left it. Raises `Unreachable`."""
        for name in self._launch.signals:
            number = signal.Signals[name]
            self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)
        if self.seat.hosting.ended is not None:
            self.seat.hosting.ended.add_done_callback(lambda _: self._coordinator_ended())
        if self._launch.endpoint.port:  # else nobody else can come, and no lease ends
            self._guard.start()
        threading.Thread(target=sweep, args=(self._keeper.arena,), name="outlast-sweep", daemon=True).start()
        await self._requests.open()
        linking = asyncio.create_task(self._link.run())
        try:
            linking.add_done_callback(self._task_ended)
            return await self._done
        finally:
            await self._end(linking)

    async def _end(self, linking: asyncio.Task[None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._group is not None:
            await self._group.stop(signal.SIGKILL, 0)
        if self._finished is not None:
            self._finished.reap()
        await self._checker.stop()
        self._unwatch()
        self._requests.close()
        if self._extension is not None:
            self._extension.close()  # whoever waits for its answer does so no longer
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._guard.close()
        if self._zygote is not None:
            self._zygote.close()
        self._inquest.close()
        await self._keeper.close(self._hurry)
        await self._link.close()
        linking.cancel()
        await asyncio.wait({linking})
        self._ports.close()

    def _reap_orphans(self) -> None:
        for group in (self._group, self._finished):
            if group is not None:
                group.reap_orphans()
        self._checker.reap_orphans()

    def _coordinator_ended(self) -> None:
        if self._node.allegiance.hosting:
            self.abandon(Over(False, "the coordinator, a process of this node, ended: its last words are above"))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._done.done():
            self._done.set_exception(error)

    def abandon(self, over: Over) -> None:
        """End now, for a reason that only this machine knows."""
        if not self._done.done():
            self._done.set_result(over)

    def _signalled(self, number: signal.Signals) -> None:
        before, self._signalled_at = self._signalled_at, now()
        if supervisor.bound() and number is self._signal and now() - before < ONE_SIGNAL:
            return  # whoever signals every process reaches this one twice: the supervisor passes on what it gets
        if self._node.leaving is not Leaving.NO:
            if not self._hurry.done():
                self._hurry.set_result(None)
            log.warning("%s again: ending at once", number.name)
            self.abandon(Over(False, f"ended by a second {number.name}"))
            return
        self._signal = number
        interrupt = number in INTERRUPTS
        self._stopped_by = number.name
        what = "ending the job" if interrupt or self._launch.max_nodes == 1 else "draining this node"
        log.warning("%s: %s (once more to end at once)", number.name, what)
        self._feed(Leave(Leaving.INTERRUPT if interrupt else Leaving.DRAIN))

    def _connected(self, standing: Standing) -> None:
        self._feed(Connected(standing, self._keeper.held() if self._node.current.clear else None))

    def _received(self, message: FromCoordinator) -> None:
        if isinstance(message, Welcome) and not self._welcomed:
            self._welcomed = True
            self.seat.keep_token()
            log.log(self._level, "joined the job as node %s", self._name)
            if self._zygote is not None and (self._settings.network_check or self._launch.check_only):
                self._zygote.wake()  # not before: a coordinator that starts here is waited for, and needs the CPU
        self._feed(Received(message))

    # -- the core

    def _feed(self, event: Event) -> None:
        if self._done.done():
            return
        for command in self._node.handle(event, now()):
            self._attempt(command)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._node.deadline()
        if deadline is not None and not self._done.done():
            self._timer = self._loop.call_later(deadline - now(), self._tick, deadline)

    def _attempt(self, command: Command) -> None:
        try:
            self._carry_out(command)
        except Exception as error:  # the rest is carried out: workers may have to be stopped
            log.exception("could not carry out %s", type(command).__name__)
            if not self._done.done():
                self._done.set_exception(error)  # and this agent ends: what it does no longer follows its decisions

    def _tick(self, due: float) -> None:
        if self._watch is not None and now() - due > HELD_UP:
            self._watch.awoke()
        self._feed(Tick())

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Tell):
            self._link.send(self._joining(command) if command.first else command.report)
        elif isinstance(command, StartWorkers):
            self._start(command.assignment, command.keeping)
        elif isinstance(command, StopWorkers):
            grace = self._launch.shutdown_timeout if command.grace is None else command.grace
            self._stop(command.generation, grace)
        elif isinstance(command, Lease):
            self._guard.renew(command.until)
        elif isinstance(command, TakeMeasures):
            self._measured(command.round)
        elif isinstance(command, Agree):
            self._longest = command.longest
            if self._watch is not None:
                self._watch.agree(command.longest)
        elif isinstance(command, Observe):
            if self._hangs is not None:
                self._hangs.look(command.number, command.interrupt)
        elif isinstance(command, Examine):
            # The store of the group is this node's, at the port that was promised: the next one gets another.
            if self._checker.begin(command.probe) and command.probe.first_rank == 0:
                with suppress(OSError):  # none is free: the next one gets the same
                    self._take_port()
        elif isinstance(command, Show):
            self._link.send(command.seen)
        elif isinstance(command, Respond):
            self._requests.respond(command.visitor, command.finding)
        elif isinstance(command, Announce):
            log.warning("%s", command.text)
        elif isinstance(command, Blame):
            if self._hangs is not None:
                self._hangs.named(command.named)
        elif isinstance(command, HaltWorkers):
            if self._watch is not None:
                self._watch.halt(command.at, command.durable)
                self._halting()
        elif isinstance(command, SetStride):
            self._keeper.set_stride(command.stride)
        elif isinstance(command, Host):
            self._host(command.mandate)
        elif isinstance(command, Retire):
            self.seat.retire()
        elif isinstance(command, Hangup):
            log.log(self._hangups(), "nothing heard from the coordinator: trying to reach it again")
            self._link.hang_up()
        else:
            assert isinstance(command, Exit), command
            self.abandon(self._explained(command.over))

    def _explained(self, over: Over) -> Over:
        """In a job of one node nobody is drained: the job was stopped, and this node knows by what."""
        if over.left and self._stopped_by and self._launch.max_nodes == 1:
            return msgspec.structs.replace(over, reason=f"stopped by {self._stopped_by}")
        return over

    def _hangups(self) -> int:
        """Once is news; a coordinator that goes on to say nothing is not."""
        first, self._hung_up_since = self._hung_up_since != self._node.allegiance.obeyed, self._node.allegiance.obeyed
        return logging.WARNING if first else logging.DEBUG

    def _joining(self, command: Tell) -> Join:
        launch = self._launch
        return Join(
            node=self._id,
            name=self._name,
            nproc=launch.nproc,
            role=launch.role,
            addr=self._address(),
            job=launch.job,
            entrypoint=sendable_path(launch.entrypoint),
            nnodes=(launch.min_nodes, launch.max_nodes),
            report=command.report,
            infra_rank=self._infra_rank,
            connection=self._node.state.conversation.connection,
            key=self._place.key,
            port=launch.endpoint.port,  # 0, where nobody else can come: then nobody takes over
            term=self._node.allegiance.term,
            charter=self._node.allegiance.charter,
            assignment=self._node.current.assignment,
            since=self._place.since,
            keeper=self._keeper.port,
            hands=self._node.hands,
        )

    def _host(self, mandate: Mandate) -> None:
        if self.seat.take(mandate):
            assert self.seat.hosting.ended is not None
            self.seat.hosting.ended.add_done_callback(lambda _: self._coordinator_ended())
        else:
            self._loop.call_soon(self._feed, NotHosted())

    def _address(self) -> str:
        """Where other nodes reach this one: as the network has it, or by the name that they reach it with already."""
        if self._launch.local_addr:
            return self._launch.local_addr
        address, endpoint = self._link.address, self._launch.endpoint
        own = ip_address(address.partition("%")[0]).is_loopback and not endpoint.loopback
        return endpoint.host if own else address

    # -- workers

    def _start(self, assignment: Assignment, keeping: Keeping) -> None:
        launch = self._launch
        self._assignment = assignment
        if assignment.fresh and self._zygote is not None:
            self._zygote.close()
            self._zygote = warm(self._workload, launch, self._settings)
        self._checker.drop()
        if self._finished is not None:  # others have not: what is left of that generation ends before the next one
            self._run(_sweep(self._finished), self._task_ended)
            self._finished = None
        ranks = range(launch.nproc)
        try:
            if assignment.group_rank == 0:
                self._take_port()
            self._watch = watch = self._watching()
            partner = self._keeper.begin(assignment.generation, self._address(), keeping)
            offered = Attachments(arena=str(self._keeper.arena), partner=partner, requests=self._requests.address)
            environments = [
                self._workload.environment(
                    assignment, r, os.environ, msgspec.structs.replace(offered, board=watch.address(r))
                )
                for r in ranks
            ]
            streams = self._logs.open(assignment, environments)
            self._group = group = self._workers(assignment.generation, environments, streams)
            self._inquest.begin(assignment, watch, streams)
            self._guard.watch(group.pids)
            self._hangs = self._attending(assignment, group, watch)
            self._pacing = self._paces(assignment, watch)
            watch.begin()
        except (OSError, ValueError) as error:
            log.error("%s", error)
            started, self._group = self._group, None
            self._unwatch()
            self._guard.watch(())
            self._run(self._not_started(assignment, str(error), started), self._task_ended)
            return
        last = assignment.first_rank + launch.nproc - 1
        shown = f"rank {last}" if launch.nproc == 1 else f"ranks {assignment.first_rank} to {last}"
        log.info("generation %d: started %s of %d", assignment.generation, shown, assignment.world_size)
        self._loop.call_soon(self._inquest.prepare)

    def _workers(self, generation: int, environments: list[dict[str, str]], streams: list[Streams]) -> WorkerGroup:
        """The workers of a generation: forked from the zygote if it is ready, else as new processes."""
        commands = [self._workload.command(r) for r in range(self._launch.nproc)]

        def on_exit(local_rank: int, pid: int, exit_code: int) -> None:
            self._exited(generation, local_rank, pid, exit_code)

        zygote = self._zygote
        if zygote is None:
            cold = partial(startup, purpose="hook -1") if self._workload.hooked else dict
            return WorkerGroup.start(commands, environments, streams, on_exit, cold=cold)
        return WorkerGroup.start(
            commands, environments, streams, on_exit, fork=zygote.fork, cold=zygote.cold, pass_fds=[zygote.news]
        )

    async def _not_started(self, assignment: Assignment, why: str, group: WorkerGroup | None) -> None:
        if group is not None:  # they live, and cannot be watched
            await group.stop(signal.SIGKILL, 0)
        self._inquest.begin(assignment)
        failure = self._inquest.failure(local_rank=0, pid=0, exit_code=NOT_STARTED, written=False)
        self._feed(Exited(assignment.generation, self._judged(msgspec.structs.replace(failure, message=sendable(why)))))
        self._feed(Cleared(assignment.generation))

    def _exited(self, generation: int, local_rank: int, pid: int, exit_code: int) -> None:
        assert self._assignment is not None
        if self._group is None:
            return  # it counts as not started
        if self._watch is not None:
            self._watch.exited(local_rank)  # before it counts as a failure: it may have said what to do about it
        succeeded = self._workload.succeeded(exit_code)
        finished = self._assignment.first_rank + local_rank if succeeded else None
        failure = None
        hung = self._hangs is not None and local_rank in self._hangs.ended
        if not succeeded and not hung and not self._node.current.told_to_stop:
            failure = self._judged(self._inquest.failure(local_rank, pid, exit_code))
        self._feed(Exited(generation, failure, finished=finished))
        if self._group is None or self._group.alive:
            return
        if self._group.succeeded and self._node.current.state is State.RUNNING and not self._node.current.told_to_stop:
            self._finish(self._group, generation)
        else:
            self._stop(generation, 0)  # the children that workers may have left behind

    def _judged(self, failure: Failure) -> Failure:
        self._logs.drain()
        return self._inquest.judged(failure, first=not self._node.current.failed)

    def _stop(self, generation: int, grace: float) -> None:
        group = self._group
        if group is None:
            return
        if self._watch is not None:
            self._watch.rest()
        # Where it fails nobody would ever hear that the workers are gone, and all would wait for this node.
        self._run(self._stopping(group, generation, grace), self._task_ended)

    def _run(self, work: Coroutine[None, None, None], *ended: Callable[[asyncio.Task[None]], None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        for each in (self._tasks.discard, *ended):
            task.add_done_callback(each)

    async def _stopping(self, group: WorkerGroup, generation: int, grace: float) -> None:
        await group.stop(self._signal, grace)
        if self._group is group:
            self._ended(generation)
            self._keeper.ended()

    def _finish(self, group: WorkerGroup, generation: int) -> None:
        """All workers have succeeded: what they left in the background, an upload say, runs on as under torchrun."""
        if background := group.background():
            pids = ", ".join(map(str, background))
            log.info("generation %d: what workers started in the background runs on: pid %s", generation, pids)
        self._finished = group
        self._ended(generation)
        log.log(self._level, "generation %d: every worker here has finished", generation)

    def _ended(self, generation: int) -> None:
        """No worker of it is alive."""
        self._group = None
        self._guard.watch(())
        self._unwatch()
        self._logs.finish()
        self._ports.release()
        self._feed(Holds(self._keeper.held()))
        self._feed(Cleared(generation))

    # -- what the board says

    def _watching(self) -> Watch:
        return Watch(
            self._launch.nproc,
            self._limits,
            late=self._late,
            asked=self._asked,
            calibrate=self._measured,
            rung=self._rung,
            longest=self._longest,
        )

    def _paces(self, assignment: Assignment, watch: Watch) -> Pacing | None:
        """Looks at how the ranks get on, to be compared with all others; where there are others."""
        if self._settings.straggler == "off" or assignment.world_size == 1:
            return None

        def tell(paces: tuple[Pace, ...]) -> None:
            self._feed(Paced(assignment.generation, paces))

        return Pacing(
            watch.totals,
            first_rank=assignment.first_rank,
            nproc=self._launch.nproc,
            nodes=assignment.group_world_size,
            tell=tell,
        )

    def _tell_unentered(self, entered: set[str]) -> None:
        """A time-out for a section that is never entered is mostly one for a name that is misspelt."""
        missing = self._limits.timeouts.sections.keys() - entered
        if not missing or self._told_unentered or not (entered or self._node.current.state is State.FINISHED):
            return
        self._told_unentered = True
        log.warning(
            "no rank here has entered the section %s, which has a time-out (rank_section_timeouts); entered were: %s",
            ", ".join(map(repr, sorted(missing))),
            ", ".join(map(repr, sorted(entered))) or "none",
        )

    def _unwatch(self) -> None:
        if self._pacing is not None:
            self._pacing.close()
            self._pacing = None
        if self._hangs is not None:
            self._hangs.close()
            self._hangs = None
        self._inquest.end()
        if self._watch is not None:
            self._tell_unentered(self._watch.sections())
            self._watch.close()
            self._watch = None

    def _rung(self) -> None:
        self._keeper.look()
        self._halting()

    def _halting(self) -> None:
        halted = self._watch.halted() if self._watch is not None else None
        if halted is not None and self._assignment is not None:
            self._feed(Halting(self._assignment.generation, halted))

    def _measured(self, number: int | None = None) -> None:
        self._feed(Measured(self._watch.measures() if self._watch is not None else {}, number))

    def _asked(self, local_rank: int, request: Request) -> None:
        assert self._assignment is not None
        rank, reason = self._assignment.first_rank + local_rank, " ".join(request.reason.split()) or "no reason given"
        log.warning("rank %d asks for %s: %s", rank, request.action.name.lower(), reason)
        if request.action is Action.DRAIN:
            self._feed(Leave(Leaving.DRAIN))
        else:
            wanted = Wanted(request.action.name.lower())
            self._feed(Wished(Wish(wanted, self._assignment.generation, rank, reason)))

    def _late(self, found: list[Hang]) -> None:
        if self._hangs is not None:
            self._hangs.late(found)

    def _attending(self, assignment: Assignment, group: WorkerGroup, watch: Watch) -> Hangs:
        return Hangs(
            self._name,
            assignment,
            group,
            watch,
            ending=self._ending if self._limits.detection == "on" else None,
            connected=lambda: self._node.state.conversation.connected,
            feed=self._feed,
            run=self._run,
            failure=partial(self._inquest.failure, written=False),
            judged=self._judged,
        )

    def _take_port(self) -> None:
        """Rank 0 takes the port that was promised; the next generation gets another."""
        self._ports.take()
        self._node.state.store_port = self._ports.promised


async def _sweep(group: WorkerGroup) -> None:
    await group.stop(signal.SIGKILL, 0)
