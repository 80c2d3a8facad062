"""The vectors of docs/wire-protocol.md: another implementation that has them right can speak with this one."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from outlast.checkpoint.memory.channel import key_of
from outlast.protocol.membership import Ack
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.succession import Standing, Term
from outlast.transport.wire import Wire

PAGE = (Path(__file__).parents[3] / "docs" / "wire-protocol.md").read_text()
TOKEN = "an example token"
BINDINGS = {"without TLS": b"", "with TLS": sha256(b"a certificate").digest()}


def vectors(title: str) -> dict[str, bytes]:
    """The rows of the table of this title; what follows a colon is the content."""
    table = PAGE.partition(f"| | {title} |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([^:|]+?)(?::[^|]*)? \| `([0-9a-f]+)` \|$", table, re.MULTILINE)
    return {name: bytes.fromhex(value) for name, value in rows}


@pytest.mark.parametrize("title", BINDINGS)
def test_the_page_and_the_code_agree(title: str) -> None:
    agent, coordinator = (Wire(TOKEN, agent=who, binding=BINDINGS[title]) for who in (True, False))
    agent._nonce, coordinator._nonce = bytes(range(16)), bytes(range(16, 32))
    made = {"secret": agent._secret, "agent's hello": agent.hello}
    coordinator.feed(agent.hello)
    made["coordinator's reply"] = coordinator.take()
    agent.feed(made["coordinator's reply"])
    made["agent's proof"] = agent.take()
    coordinator.feed(made["agent's proof"])
    made["key to the coordinator"], made["key to the agent"] = agent._key_out, agent._key_in
    standing, ack = Standing(Term(1, "node-a"), True, "job"), Ack(7, 1, True)
    made["first frame to the agent"] = coordinator.pack(msgspec.msgpack.encode(standing))
    made["second frame to the agent"] = coordinator.pack(msgspec.msgpack.encode(ack))
    made["first frame to the coordinator, empty"] = agent.pack(b"")
    made["keepers' token"] = bytes.fromhex(key_of(TOKEN))
    known = vectors(title)
    assert len(known) == (10 if title == "without TLS" else 3)
    assert {name: made[name].hex() for name in known} == {name: value.hex() for name, value in known.items()}
    frames = made["first frame to the agent"] + made["second frame to the agent"]
    heard = [msgspec.msgpack.decode(each, type=FromCoordinator) for each in agent.feed(frames)]
    assert heard == [standing, ack]
