"""What the job decided: as data, from which a digest is made, and as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outlast.core.job.commands import Command, Drop, Publish, Reply, Send
from outlast.events.digest import digest
from outlast.events.sentences import sentence
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import Over, Refuse
from outlast.protocol.messages import FromCoordinator


def digest_of(commands: Iterable[Command]) -> str:
    """The same for the same decisions, however they are put into words. Answers to heartbeats are no decisions."""
    return digest([fact for command in commands if (fact := _fact(command))])


def lines(commands: Iterable[Command]) -> Iterator[str]:
    """The commands that are decisions, in words.

    >>> from outlast.events.events import NodeLeft
    >>> list(lines([Publish(NodeLeft(generation=1, node="a"))]))
    ['node a left']
    """
    for command in commands:
        if isinstance(command, Publish):
            yield from sentence(command.event).splitlines()
        elif isinstance(command, Drop):
            yield f"-> {command.node}: goodbye"
        elif isinstance(command, Reply):
            yield f"-> who asked: {command.answer.text}"
        elif isinstance(command, Send) and (said := _said(command)):
            yield f"-> {command.node}: {said}"


def _fact(command: Command) -> object:
    if isinstance(command, Publish):
        return command.event
    if isinstance(command, Drop):
        return ("drop", command.node)
    if isinstance(command, Reply):
        return ("reply", command.answer.done)
    return _sent(command.node, command.message) if isinstance(command, Send) else None


def _sent(node: str, message: FromCoordinator) -> object:
    if isinstance(message, Start):
        return ("start", node, message.assignment)
    if isinstance(message, Stop):
        return ("stop", node, message.generation, message.graceful)
    if isinstance(message, Over):
        return ("over", node, message.success, message.left)
    if isinstance(message, Refuse):
        return ("refuse", node)
    return None


def _said(command: Send) -> str:
    message = command.message
    if isinstance(message, Start):
        a = message.assignment
        return (
            f"start generation {a.generation} as group rank {a.group_rank} of {a.group_world_size}, ranks from "
            f"{a.first_rank} of {a.world_size}, restart {a.restart_count}, store {a.master_addr}:{a.master_port}"
        )
    if isinstance(message, Stop):
        return f"stop generation {message.generation}{' gracefully' * message.graceful}"
    if isinstance(message, Over):
        return f"over, {'success' if message.success else 'failure'}: {message.reason}"
    if isinstance(message, Refuse):
        return f"refused: {message.reason}"
    return ""
