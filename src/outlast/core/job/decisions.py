"""What the job decided, as lines for people: the same for the same events, to the byte."""

from __future__ import annotations

from collections.abc import Iterable

from outlast.core.job.commands import Command, Drop, Note, Reply, Send
from outlast.protocol.generations import Start, Stop
from outlast.protocol.membership import Over, Refuse


def decisions(commands: Iterable[Command]) -> list[str]:
    """The commands that are decisions: answers to heartbeats, and what is merely told to nodes, are none.

    >>> from outlast.core.job.commands import NoteKind as Kind
    >>> decisions([Note("generation 1: 1 node, 1 rank (a)", Kind.GENERATION, 1)])
    ['generation 1: 1 node, 1 rank (a)']
    """
    return [line for command in commands if (line := _line(command))]


def _line(command: Command) -> str:
    if isinstance(command, Note):
        return command.text
    if isinstance(command, Drop):
        return f"-> {command.node}: goodbye"
    if isinstance(command, Reply):
        return f"-> who asked: {command.answer.text}"
    if isinstance(command, Send):
        said = _said(command)
        return f"-> {command.node}: {said}" if said else ""
    return ""


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
