"""`python -m outlast.coordinator`: started by an agent, with its commission on standard input."""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import sys
from pathlib import Path

import msgspec

from outlast import log
from outlast.coordinator.event_stream import EventStream
from outlast.coordinator.server import Server
from outlast.journal import Journal, recall
from outlast.notices.webhook import WebhookProcess
from outlast.protocol.membership import Over
from outlast.transport import certificate
from outlast.transport.commission import Commission

LAST_WORDS = 5.0  # after the workers' own time to shut down, for agents to say goodbye


def main() -> int:
    commission = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Commission)
    logger = log.configure(commission.log_level, "coordinator")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for every node
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # looking through ten thousand connections for garbage takes long
    listener = socket.socket(fileno=commission.listener)
    listener.setblocking(False)
    context, binding = certificate.server_side(commission.tls) if commission.tls is not None else (None, b"")

    path = Path(commission.journal)
    memory, history = recall(path) if commission.recall else (None, ())
    journal = Journal(path, fresh=not commission.recall)
    events = EventStream(commission.events, job=commission.rules.job) if commission.events else None

    async def coordinate() -> Over | None:
        server = Server(
            commission.rules,
            commission.token,
            binding=binding,
            term=commission.term,
            run=commission.run,
            memory=memory,
            charter=commission.charter,
            history=(*history, *commission.history),
            journal=journal,
            events=events,
            notices=WebhookProcess(commission.webhook, job=commission.rules.job) if commission.webhook else None,
        )
        return await server.serve(listener, tls=context, linger=commission.shutdown_timeout + LAST_WORDS)

    try:
        over = asyncio.run(coordinate())
    finally:
        journal.close()
        if events is not None:
            events.close()
    # Not where it has crashed: the next one, on the same port, is found by it.
    if commission.record:
        Path(commission.record).unlink(missing_ok=True)
    if not commission.keep:
        path.unlink(missing_ok=True)
    logger.debug("the coordinator ends: %s", over.reason if over is not None else "another node hosts it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
