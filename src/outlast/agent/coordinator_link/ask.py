"""One question to a running job's coordinator, and its answer."""

from __future__ import annotations

import asyncio
import ssl

from outlast.agent.coordinator_link.link import FAILED, Connection, CoordinatorUnreachable, connect, why_not
from outlast.launch import Endpoint
from outlast.protocol.chaos import AskChaos
from outlast.protocol.messages import ToAnybody
from outlast.protocol.requests import Answer, Ask
from outlast.transport.wire import WrongToken

PATIENCE = 10.0


async def ask(endpoint: Endpoint, token: str | None, tls: ssl.SSLContext | None, question: Ask | AskChaos) -> Answer:
    """The coordinator's answer. Raises `CoordinatorUnreachable`, with a line that says what to do."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answer] = loop.create_future()

    def receive(_: Connection, message: ToAnybody) -> None:
        if isinstance(message, Answer) and not answered.done():
            answered.set_result(message)

    try:
        connection = await connect(endpoint, token, tls, receive)
        connection.send(question)
        connection.closed.add_done_callback(lambda _: answered.cancel())  # with no effect on an answer that came
        await asyncio.wait({answered}, timeout=PATIENCE)
        connection.close()
    except WrongToken as error:
        raise CoordinatorUnreachable(
            f"the coordinator at {endpoint} has another token: set the job's OUTLAST_TOKEN"
        ) from error
    except FAILED as error:
        raise CoordinatorUnreachable(why_not(error, endpoint, PATIENCE, tls)) from error
    if not answered.done() or answered.cancelled():
        raise CoordinatorUnreachable(f"the coordinator at {endpoint} gave no answer")
    return answered.result()
