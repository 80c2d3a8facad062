"""What one event makes the job do: collected in order."""

from __future__ import annotations

from outlast.core.job.commands import Command, Drop, NodesWanted, Publish, ReleaseNode, Send
from outlast.core.membership.attendance import Attendance
from outlast.events.events import JobEvent, NodeExcluded, WaitingForNodes
from outlast.events.sentences import needed
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import Ack, Over
from outlast.protocol.messages import FromCoordinator


class Outbox:
    """The commands of the event that is being handled."""

    def __init__(self, nodes: Attendance) -> None:
        self.commands: list[Command] = []
        self._nodes = nodes

    def open(self) -> None:
        """The next event."""
        self.commands = []

    def add(self, command: Command) -> None:
        self.commands.append(command)

    def send(self, node: str, message: FromCoordinator) -> None:
        """Tell a node something; what names a term may teach the node that term."""
        if isinstance(message, Ack | Start | Stop | Over) and node in self._nodes:
            self._nodes[node].told = message.term
        self.commands.append(Send(node, message))

    def drop(self, node: str) -> None:
        self.commands.append(Drop(node))

    def publish(self, event: JobEvent) -> None:
        self.commands.append(Publish(event))

    def want(self, waiting: WaitingForNodes) -> None:
        """Too few nodes are here: ask for the rest."""
        self.commands.append(NodesWanted(waiting.least - len(waiting.ready), needed(waiting)))

    def release(self, excluded: NodeExcluded) -> None:
        """A node is not used any more: say so, and give it back."""
        self.publish(excluded)
        self.commands.append(ReleaseNode(excluded.node, excluded.why, excluded.seconds))

    @property
    def is_only_acks(self) -> bool:
        """Whether nothing but heartbeats is answered."""
        return all(isinstance(each, Send) and isinstance(each.message, Ack) for each in self.commands)
