"""Two ends of a connection, byte by byte: what arrives is what was sent by who knows the token, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.transport.wire import CODE, HEADER, MAGIC, MAX_FRAME, NONCE, NotOutlast, Wire, WireError, WrongToken

TOKEN = "the token of this job"


def pair(token: str = TOKEN, other: str = TOKEN, binding: bytes = b"", seen: bytes = b"") -> tuple[Wire, Wire]:
    """An agent's end and a coordinator's, before the first byte."""
    return Wire(token, agent=True, binding=seen), Wire(other, agent=False, binding=binding)


def shake(agent: Wire, coordinator: Wire) -> None:
    coordinator.feed(agent.hello)
    agent.feed(coordinator.take())
    coordinator.feed(agent.take())


def connected(token: str = TOKEN) -> tuple[Wire, Wire]:
    agent, coordinator = pair(token, token)
    shake(agent, coordinator)
    return agent, coordinator


def test_both_ends_are_ready_after_the_handshake() -> None:
    agent, coordinator = pair()
    assert not agent.ready
    assert not coordinator.ready
    shake(agent, coordinator)
    assert agent.ready
    assert coordinator.ready


@given(
    payloads=st.lists(st.binary(max_size=2000), max_size=10),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=50),
)
def test_payloads_arrive_whole_and_in_order_however_the_bytes_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    agent, coordinator = pair()
    coordinator.feed(agent.hello)
    agent.feed(coordinator.take())
    stream = agent.take() + b"".join(map(agent.pack, payloads))
    arrived, at, turn = [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        arrived += coordinator.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert arrived == payloads


def test_messages_go_both_ways() -> None:
    agent, coordinator = connected()
    for turn in range(3):
        assert coordinator.feed(agent.pack(b"up %d" % turn)) == [b"up %d" % turn]
        assert agent.feed(coordinator.pack(b"down %d" % turn)) == [b"down %d" % turn]


def test_the_token_never_crosses_the_wire() -> None:
    agent, coordinator = pair()
    said = [agent.hello]
    coordinator.feed(said[-1])
    said.append(coordinator.take())
    agent.feed(said[-1])
    said.append(agent.take() + agent.pack(b"hello"))
    assert TOKEN.encode() not in b"".join(said)


def test_each_end_refuses_one_with_another_token() -> None:
    agent, coordinator = pair("one token", "another token")
    coordinator.feed(agent.hello)
    with pytest.raises(WrongToken):
        agent.feed(coordinator.take())
    with pytest.raises(WrongToken):
        coordinator.feed(bytes(CODE))
    assert not agent.ready
    assert not coordinator.ready


def test_each_end_refuses_one_that_saw_another_certificate() -> None:
    """A man in the middle has a certificate of his own: the proofs cover the one that each end sees."""
    agent, coordinator = pair(binding=b"ours", seen=b"his")
    coordinator.feed(agent.hello)
    with pytest.raises(WrongToken):
        agent.feed(coordinator.take())


def test_a_proof_cannot_be_sent_back_to_who_made_it() -> None:
    """Without the token, the best that one has to offer is what the other end has just proved."""
    _, coordinator = pair()
    coordinator.feed(MAGIC + bytes(NONCE))
    proof = coordinator.take()[-CODE:]
    with pytest.raises(WrongToken):
        coordinator.feed(proof)


def test_an_agents_own_hello_does_not_pass_for_a_coordinators_answer() -> None:
    agent, _ = pair()
    with pytest.raises(WrongToken):
        agent.feed(agent.hello + bytes(CODE))


def test_a_session_that_was_recorded_cannot_be_played_again() -> None:
    agent, coordinator = pair()
    recorded = [agent.hello]
    coordinator.feed(recorded[0])
    agent.feed(coordinator.take())
    recorded.append(agent.take() + agent.pack(b"join"))
    assert coordinator.feed(recorded[1]) == [b"join"]
    _, again = pair()
    again.feed(recorded[0])
    with pytest.raises(WrongToken):
        again.feed(recorded[1])


@pytest.mark.parametrize("order", [[0, 0], [1], [1, 0]], ids=["repeated", "left out", "reordered"])
def test_frames_count_in_their_order_alone(order: list[int]) -> None:
    agent, coordinator = connected()
    frames = [agent.pack(b"first"), agent.pack(b"second")]
    with pytest.raises(WireError):
        coordinator.feed(b"".join(frames[each] for each in order))


def test_a_frame_counts_on_its_own_connection_and_in_its_own_direction_alone() -> None:
    agent, coordinator = connected()
    _, another = connected()
    with pytest.raises(WireError):
        another.feed(agent.pack(b"first"))
    with pytest.raises(WireError):
        coordinator.feed(coordinator.pack(b"mine"))


@given(st.data())
def test_a_changed_bit_is_noticed(data: st.DataObject) -> None:
    agent, coordinator = connected()
    frame = bytearray(agent.pack(b"a message of some length"))
    bit = data.draw(st.integers(32, len(frame) * 8 - 1))  # those of the length make a longer or shorter frame
    frame[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(WireError):
        coordinator.feed(bytes(frame))


def test_a_shorter_length_is_noticed() -> None:
    agent, coordinator = connected()
    frame = bytearray(agent.pack(b"a message"))
    frame[3] -= 1
    with pytest.raises(WireError):
        coordinator.feed(bytes(frame))


def test_a_frame_that_is_too_large_is_refused_before_it_is_read_or_sent() -> None:
    agent, coordinator = connected()
    with pytest.raises(WireError, match="larger than the limit"):
        coordinator.feed((MAX_FRAME + 1).to_bytes(4, "big") + bytes(CODE))
    with pytest.raises(ValueError, match="larger than the limit"):
        agent.pack(bytes(MAX_FRAME + 1))
    agent, coordinator = connected()
    assert coordinator.feed(agent.pack(bytes(MAX_FRAME))) == [bytes(MAX_FRAME)]


def test_nobody_can_make_it_keep_more_than_one_frame() -> None:
    """What does not prove anything is refused as it comes, and not kept until there is more of it."""
    _, coordinator = pair()
    coordinator.feed(MAGIC + bytes(NONCE))
    coordinator.take()
    with pytest.raises(WrongToken):
        coordinator.feed(bytes(10 * MAX_FRAME))


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00",
        b"OUTLAST\x03",
        b"OUTLAsT\x01",
        bytes(100),
    ],
)
def test_what_is_not_outlast_is_told_from_a_wrong_token(garbage: bytes) -> None:
    for wire in pair():
        with pytest.raises(NotOutlast):
            wire.feed(garbage)


@given(st.binary(min_size=1, max_size=200))
def test_no_bytes_from_a_stranger_become_a_payload(garbage: bytes) -> None:
    for wire in pair():
        try:
            assert wire.feed(garbage) == []
            assert wire.feed(bytes(HEADER)) == []
        except WireError:
            pass
        assert not wire.ready


def test_half_a_handshake_is_waited_for() -> None:
    agent, coordinator = pair()
    for byte in agent.hello:
        assert coordinator.feed(bytes([byte])) == []
    for byte in coordinator.take():
        assert agent.feed(bytes([byte])) == []
    assert agent.ready
    assert not coordinator.ready
