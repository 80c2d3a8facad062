"""One node's agent: puts the parts around the node's decisions together, and takes them apart in the end.

`NodeDriver` feeds the decisions, `CoordinatorClient` talks to the coordinator, `WorkerRunner` starts and ends workers,
`Monitor` watches them, `AgentSignals` hears signals. What the node decides goes to one of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import threading
from contextlib import suppress

from outlast import rulebook
from outlast.agent.chaos.hands import ChaosHands
from outlast.agent.coordinator_link.client import CoordinatorClient
from outlast.agent.driver import NodeDriver
from outlast.agent.monitoring.checker import Checker
from outlast.agent.monitoring.monitor import Monitor
from outlast.agent.observers.doors import Doors
from outlast.agent.observers.log_answers import LogAnswers
from outlast.agent.output.logs import JobLogs
from outlast.agent.postmortem.extension import Extension
from outlast.agent.postmortem.investigation import Investigation
from outlast.agent.postmortem.verdicts import Judge
from outlast.agent.processes.guard import Guard
from outlast.agent.processes.place import Place
from outlast.agent.processes.ports import StorePorts
from outlast.agent.processes.role_tasks import RoleTasks
from outlast.agent.processes.runner import WorkerRunner
from outlast.agent.processes.worker_requests import WorkerRequests
from outlast.agent.signals import AgentSignals
from outlast.agent.snapshots.keeper import Keeper, Line, listen
from outlast.agent.snapshots.leftovers import sweep
from outlast.agent.warm_start.warming import Spawner
from outlast.core.node import commands
from outlast.core.node.inputs import Examined, Inquired, KeepsUp
from outlast.core.node.node import Node
from outlast.core.tasks.memory import GrowingMemory
from outlast.launch import Launch
from outlast.protocol.checks import Probe
from outlast.protocol.generations import Assignment
from outlast.protocol.membership import Over
from outlast.protocol.snapshots import Keeping
from outlast.settings.settings import Settings
from outlast.settings.values import MOST_GROWTH, memory_bytes
from outlast.system.tasks import Tasks
from outlast.transport.commission import Tls
from outlast.workloads.workload import Attachments

log = logging.getLogger("agent")


class Agent:
    """One node's agent, from joining to its last word. Made within a running event loop.

    over = await Agent(launch, settings, logs=…).run()
    """

    def __init__(
        self, launch: Launch, settings: Settings, *, place: Place, logs: JobLogs, extension: Extension | None = None
    ) -> None:
        self._launch = launch
        self._extension = extension
        self._tasks = Tasks()
        self._ports = StorePorts(settings.store_ports, launch.store_port)
        name = f"{place.name}-{secrets.token_hex(6)}"
        node = Node(name, store_port=self._ports.promised, ranks=launch.nproc)
        self._driver = driver = NodeDriver(node, self._carry_out, held_up=lambda: self._monitor.awoke())
        self._signals = AgentSignals(driver, alone=launch.max_nodes == 1)
        self._keeper = Keeper(
            place,
            linger=settings.snapshot_linger,
            level=settings.log_level,
            line=self._line_to_other_keepers(settings),
            keeps_up=lambda stride: driver.feed(KeepsUp(stride)),
        )
        self.client = CoordinatorClient(
            launch,
            settings,
            place,
            driver,
            self._keeper,
            joined=lambda: self._checker.joined(),
            doors=lambda: self._doors,
            asked=lambda question: self._log_answers.asked(question),
            hurt=lambda order: self._chaos.ordered(order),
        )
        self._chaos = ChaosHands(
            settings,
            send=self.client.link.send,
            pids=lambda: self._runner.pids,
            hosting=self.client.seat.hosting,
            others=self.client.present_places,
        )
        self._log_answers = LogAnswers(logs, send=self.client.link.send)
        self._doors = Doors(
            launch,
            settings,
            node=place.name,
            logs=logs.directory if logs.asked_for else "",
            places=self.client.present_places,
            token=self.client.token,
        )
        self._guard = Guard(places=launch.nproc)
        self._spawner = spawner = Spawner(launch, settings)
        self._checker = Checker(
            launch,
            settings,
            zygote=lambda: spawner.zygote,
            found=lambda findings: driver.feed(Examined(self._chaos.spoiled(findings))),
        )
        self._requests = WorkerRequests(lambda visitor, question: driver.feed(Inquired(visitor, question)))
        roles = RoleTasks(launch) if launch.roles else None
        self._monitor = Monitor(
            place.name,
            launch.nproc,
            settings,
            driver,
            self._tasks,
            rung=self._keeper.look,
            trainers=roles.table.trainers if roles is not None else None,
        )
        judge = Judge(
            settings.signatures, rulebook.read(settings.failover_rules), coordinator_port=launch.endpoint.port
        )
        self._inquest = Investigation(
            place.name,
            launch.job,
            judge,
            extension,
            disk=logs.disk,
            feed=driver.feed,
            tasks=self._tasks,
            names=roles.names if roles is not None else (),
        )
        self._runner = WorkerRunner(
            driver,
            spawner,
            self._monitor,
            self._inquest,
            logs=logs,
            ports=self._ports,
            guard=self._guard,
            keeper=self._keeper,
            in_place_timeout=settings.in_place_timeout,
            offer=self._offer,
            ending=lambda: self._signals.for_workers,
            roles=roles,
            memory=_worker_memory(settings),
        )

    def _line_to_other_keepers(self, settings: Settings) -> Line | None:
        listener = listen(loopback=self._launch.endpoint.loopback) if self._launch.max_nodes > 1 else None
        if listener is None:
            return None
        tls = Tls(settings.tls_cert, settings.tls_key, settings.tls_ca) if settings.tls else None
        return Line(listener, lambda: self.client.token(), tls, settings.replicas)

    @property
    def hurried(self) -> bool:
        """Whether somebody wants it to end at once."""
        return self._signals.hurry.done()

    @property
    def unwritten(self) -> str:
        """Which snapshot should be on disk and is not, after `run`."""
        return self._keeper.unwritten

    async def run(self) -> Over:
        """Take part in the job until it is over, or this node has left it. Raises `CoordinatorUnreachable`."""
        self._signals.listen(self._launch.signals)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap_orphans)
        self.client.attend_hosting()
        if self._launch.endpoint.port:  # else nobody else can come, and no lease ends
            self._guard.start()
        threading.Thread(target=sweep, args=(self._keeper.arena,), name="outlast-sweep", daemon=True).start()
        await self._requests.open()
        self._doors.open()
        linking = Tasks(self._driver.fail)
        linking.start(self._take_part())
        try:
            return await self._driver.over
        finally:
            await self._end()
            await linking.cancel()
            self._ports.close()

    async def _take_part(self) -> None:
        await self._spawner.warmed()
        await self.client.link.run()

    async def _end(self) -> None:
        self._driver.rest()
        await self._runner.close()
        await self._log_answers.close()
        await self._checker.stop()
        self._requests.close()
        self._chaos.close()
        self._doors.close()
        if self._extension is not None:
            self._extension.close()  # whoever waits for its answer does so no longer
        await self._tasks.wait()
        self._guard.close()
        self._spawner.close()
        self._inquest.close()
        await self._keeper.close(self._signals.hurry)

    def _reap_orphans(self) -> None:
        self._runner.reap_orphans()
        self._checker.reap_orphans()

    def _carry_out(self, command: commands.Command) -> None:
        if isinstance(command, commands.ForCoordinator):
            self.client.carry_out(command)
        elif isinstance(command, commands.ForMonitor):
            self._monitor.carry_out(command)
        elif isinstance(command, commands.StartWorkers):
            self._checker.drop()
            self._runner.start(command.assignment, command.keeping)
        elif isinstance(command, commands.StopWorkers):
            grace = self._launch.shutdown_timeout if command.grace is None else command.grace
            # With the whole shutdown timeout the job or this node's part in it ends: the script hears of it as ever.
            self._runner.stop(command.generation, grace, in_place=command.grace is not None)
        elif isinstance(command, commands.RefillWorkers):
            self._runner.refill()
        elif isinstance(command, commands.Lease):
            self._guard.renew(command.until)
        elif isinstance(command, commands.Examine):
            self._examine(command.probe)
        elif isinstance(command, commands.Respond):
            self._requests.respond(command.visitor, command.finding)
        elif isinstance(command, commands.Announce):
            log.warning("%s", command.text)
        elif isinstance(command, commands.SetStride):
            self._keeper.set_stride(command.stride)
        else:
            assert isinstance(command, commands.Exit), command
            self._driver.end(self._signals.explained(command.over))

    def _examine(self, probe: Probe) -> None:
        # The store of the group is this node's, at the port that was promised: the next one gets another.
        if self._checker.begin(probe) and probe.first_rank == 0:
            with suppress(OSError):  # none is free: the next one gets the same
                self._runner.take_port()

    def _offer(self, assignment: Assignment, keeping: Keeping) -> Attachments:
        partner = self._keeper.begin(assignment.generation, self.client.address(), keeping)
        return Attachments(
            arena=str(self._keeper.arena),
            partner=partner,
            requests=self._requests.address,
            chaos=self._chaos.directory,
            in_place=self._runner.in_place_address,
        )


def _worker_memory(settings: Settings) -> GrowingMemory:
    amount = memory_bytes(settings.worker_memory)
    return GrowingMemory(amount, most=memory_bytes(settings.max_worker_memory) or MOST_GROWTH * amount)
