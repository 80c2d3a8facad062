"""Bytes off the network: what is not exactly what the other end sent is refused, with one of two exceptions."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import assume, example, given
from hypothesis import strategies as st

from outlast.checkpoint.memory import channel
from outlast.protocol.fields import UNREADABLE
from outlast.protocol.messages import FromAgent, FromCoordinator
from outlast.protocol.shards import ShardQuestion
from outlast.transport.wire import HEADER, Wire, WireError

DECODERS = [msgspec.msgpack.Decoder(kind) for kind in (FromAgent, FromCoordinator, ShardQuestion, channel.Message)]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=40,
)
TAGS = sorted(
    {
        tag
        for each in (FromAgent, FromCoordinator, channel.Message)
        for kind in each.__args__  # type: ignore[union-attr]
        if (tag := kind.__struct_config__.tag) is not None
    }
)


def pair() -> tuple[Wire, Wire]:
    agent, coordinator = Wire("a token", agent=True), Wire("a token", agent=False)
    coordinator.feed(agent.hello)
    agent.feed(coordinator.take())
    coordinator.feed(agent.take())
    return agent, coordinator


@given(st.binary(max_size=200), st.lists(st.integers(1, 50)))
def test_a_stranger_never_gets_through(said: bytes, cuts: list[int]) -> None:
    coordinator = Wire("a token", agent=False)
    with suppress(WireError):
        for cut in [*cuts, len(said)]:
            assert coordinator.feed(said[:cut]) == []
            said = said[cut:]
    assert not coordinator.ready


@given(st.binary(max_size=100), st.data())
def test_a_changed_frame_is_never_taken(payload: bytes, data: st.DataObject) -> None:
    agent, coordinator = pair()
    frame = bytearray(agent.pack(payload))
    at = data.draw(st.integers(0, len(frame) - 1))
    other = data.draw(st.integers(0, 255))
    assume(frame[at] != other)
    frame[at] = other
    with suppress(WireError):
        assert coordinator.feed(bytes(frame) + bytes(HEADER)) == []


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.lists(st.integers(1, 60)))
def test_frames_arrive_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    agent, coordinator = pair()
    stream, heard = b"".join(map(agent.pack, payloads)), []
    for cut in [*cuts, len(stream)]:
        heard += coordinator.feed(stream[:cut])
        stream = stream[cut:]
    assert heard == payloads


@given(st.binary(max_size=200))
@example(b"\x92\xa1\xff")  # text that is no UTF-8
@example(b"\x94\xa3ask\xa1\xff\xa1a\xa1a")
@example(b"\x92\xa2no\xa1\xff")
@example(b"\x91" * 100_000)
def test_bytes_are_messages_or_refused(noise: bytes) -> None:
    decode_all(noise)


@given(st.sampled_from(TAGS), st.lists(VALUES, max_size=16))
def test_values_of_any_type_in_any_message_are_refused_or_fit(tag: str, fields: list[Any]) -> None:
    decode_all(msgspec.msgpack.encode([tag, *fields]))


def decode_all(text: bytes) -> None:
    for decoder in DECODERS:
        with suppress(*UNREADABLE):
            message = decoder.decode(text)
            # What was taken can be sent on, and written to a journal, which is JSON.
            assert decoder.decode(msgspec.msgpack.encode(message)) == message
            json.loads(msgspec.json.encode(message))
