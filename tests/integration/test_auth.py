"""Strangers at a running job's door: each is shown out, for a reason that is logged, and the job does not notice."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec
import pytest

from jobs import WAITS, free_port, node, workers
from outlast.protocol.membership import Ack, Join, Refuse, Report, State
from outlast.protocol.messages import FromCoordinator
from outlast.protocol.succession import Standing
from outlast.transport.wire import CODE, HEADER, MAGIC, MAX_FRAME, NONCE, Wire, WrongToken
from processes import Process

TOKEN = "the secret of this very job"
PATIENCE = 60.0  # seconds, on a machine however busy

Job = tuple[Process, int]


@pytest.fixture(scope="module")
def target() -> Iterator[Job]:
    """A job that runs before, during and after all of the tests, in one generation, and then succeeds."""
    port = free_port()
    with node("a", port, "--nnodes=1", env={"OUTLAST_TOKEN": TOKEN}) as process:
        (worker,) = workers(process, 1, 0)
        yield process, port
        os.kill(worker.pid, signal.SIGUSR1)
        assert process.wait() == 0, process.output
        assert "generation 2" not in process.output
        assert "Traceback" not in process.output


@contextmanager
def knock(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        yield connection


def assert_shown_out(job: Job, connection: socket.socket, why: str) -> bytes:
    """The connection is closed by the coordinator, which says why. Returns what it had sent."""
    host, port = connection.getsockname()
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    job[0].wait_for(rf"coordinator: closed the connection from {re.escape(host)}:{port}: .*{why}", anywhere=True)
    return received


class Insider:
    """Somebody who knows the token, and speaks the protocol by hand."""

    def __init__(self, connection: socket.socket, token: str = TOKEN) -> None:
        self.wire = Wire(token, agent=True)
        self.sent = b""
        self._heard: list[bytes] = []
        self._connection = connection
        self.send(self.wire.hello)
        while not self.wire.ready:
            self.wire.feed(connection.recv(65536))
        self.send(self.wire.take())

    def send(self, data: bytes) -> None:
        self.sent += data
        self._connection.sendall(data)

    def say(self, message: object) -> None:
        self.send(self.wire.pack(msgspec.msgpack.encode(message)))

    def hear(self) -> FromCoordinator:
        while not self._heard:
            data = self._connection.recv(65536)
            assert data, "the coordinator has closed the connection"
            self._heard += self.wire.feed(data)
        return msgspec.msgpack.decode(self._heard.pop(0), type=FromCoordinator)


def report(seq: int = 1) -> Report:
    return Report(seq=seq, floor=0, generation=0, state=State.IDLE, clear=True, store_port=1)


def join(node: str, nnodes: tuple[int, int] = (1, 1)) -> Join:
    return Join(
        node=node,
        name=node,
        nproc=1,
        role="default",
        addr="127.0.0.1",
        job="job",
        entrypoint=str(WAITS),
        nnodes=nnodes,
        report=report(),
    )


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", id="an HTTP request"),
        pytest.param(bytes.fromhex("16030100c8010000c40303") + bytes(200), id="a TLS greeting"),
        pytest.param(b"\x80\x04\x95cposix\nsystem\n(S'true'\ntR.", id="a pickle"),
        pytest.param(bytes(range(255, -1, -1)) * 1000, id="garbage"),
        pytest.param(b"OUTLAST\x03" + bytes(64), id="another version"),
    ],
)
def test_who_does_not_speak_the_protocol_is_shown_out(garbage: bytes, target: Job) -> None:
    with knock(target[1]) as connection:
        connection.sendall(garbage)
        assert assert_shown_out(target, connection, "does not speak Outlast's protocol") == b""


def test_who_does_not_know_the_token_is_shown_out(target: Job) -> None:
    with knock(target[1]) as connection, pytest.raises(WrongToken):
        Insider(connection, "a guess at the token")
    target[0].wait_for("went before it had joined: it may not know this job's token")
    with knock(target[1]) as connection:
        # And one that does not mind that the coordinator has proved to know another.
        connection.sendall(MAGIC + bytes(NONCE) + bytes(CODE) + bytes(1000))
        answer = assert_shown_out(target, connection, "does not know this job's token")
        assert len(answer) in (0, len(MAGIC) + NONCE + CODE)


def test_a_session_that_was_recorded_cannot_be_played_again(target: Job) -> None:
    with knock(target[1]) as connection:
        insider = Insider(connection)
        insider.say(join("recorded", nnodes=(1, 2)))
        assert isinstance(insider.hear(), Standing)
        assert isinstance(insider.hear(), Refuse)
    with knock(target[1]) as connection:
        connection.sendall(insider.sent)
        assert_shown_out(target, connection, "does not know this job's token")


Say = Callable[[Insider], None]


@pytest.mark.parametrize(
    ("say", "why"),
    [
        pytest.param(lambda i: i.say(report()), "reported before it joined", id="a report before a join"),
        pytest.param(lambda i: i.say(Ack(1, 1)), "", id="a message for agents"),
        pytest.param(lambda i: i.say({"type": "join"}), "", id="a message of the wrong type"),
        pytest.param(lambda i: i.say(["join", 1, 2]), "", id="a join of the wrong types"),
        pytest.param(lambda i: i.say(["no such message"]), "", id="an unknown message"),
        pytest.param(lambda i: i.send(i.wire.pack(b"\xc1")), "", id="no message at all"),
        pytest.param(lambda i: i.send(i.wire.pack(b"")), "", id="an empty message"),
        pytest.param(lambda i: i.send(i.wire.pack(b"\x92\xa1\xff")), "", id="text that is no UTF-8"),
        pytest.param(lambda i: i.send(i.wire.pack(nested(100_000))), "", id="a message that is nested deeply"),
        pytest.param(
            lambda i: i.send((MAX_FRAME + 1).to_bytes(4, "big") + bytes(HEADER)),
            "larger than the limit",
            id="oversized",
        ),
        pytest.param(lambda i: i.send((8).to_bytes(4, "big") + bytes(CODE + 8)), "damaged or forged", id="forged"),
        pytest.param(lambda i: i.send(twice(i)), "damaged or forged", id="repeated"),
    ],
)
def test_who_knows_the_token_but_breaks_the_rules_is_shown_out(say: Say, why: str, target: Job) -> None:
    with knock(target[1]) as connection:
        insider = Insider(connection)
        say(insider)
        assert_shown_out(target, connection, why)


def nested(depth: int) -> bytes:
    """A report with one field too many, which holds nothing, many times over."""
    fields = msgspec.msgpack.encode(report())
    return bytes([fields[0] + 1]) + fields[1:] + b"\x91" * depth + b"\xc0"


def twice(insider: Insider) -> bytes:
    return 2 * insider.wire.pack(msgspec.msgpack.encode(join("twice", nnodes=(1, 2))))


def test_who_joins_twice_on_one_connection_is_shown_out(target: Job) -> None:
    with knock(target[1]) as connection:
        insider = Insider(connection)
        insider.say(join("twice"))
        insider.say(join("another"))
        assert_shown_out(target, connection, "joined twice on one connection")


def test_a_stranger_can_open_and_hold_hundreds_of_connections(target: Job) -> None:
    """Those that say nothing, or half of a greeting, are shown out in time; until then nobody else has to wait."""
    process, port = target
    with ExitStack() as stack:
        crowd = [stack.enter_context(knock(port)) for _ in range(500)]
        for connection in crowd[::2]:
            connection.sendall(MAGIC + bytes(NONCE // 2))
        with knock(port) as connection:
            insider = Insider(connection)
            insider.say(join("late"))
            insider.hear()
        process.wait_for("node late was lost: its connection")  # closed, or reset if it had not heard all
        process.wait_for("it said nothing")
        for connection in crowd:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    assert 0 < sum("it said nothing" in line for line in process.lines) <= 40  # and no flood of lines


def test_strangers_lock_no_node_out_where_descriptors_are_few() -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

    port, flags = free_port(), ("--nnodes=2", "--nproc-per-node=1")
    with ExitStack() as stack:
        first = stack.enter_context(node("a", port, *flags, preexec_fn=few))
        first.wait_for("joined the job")
        for _ in range(3000):
            stack.enter_context(knock(port))
        second = stack.enter_context(node("b", port, *flags))
        for each in (first, second):
            worker = int(each.wait_for(r"rank \d of 2 started in generation 1: pid (\d+)")[1])
            os.kill(worker, signal.SIGUSR1)
        assert [first.wait(), second.wait()] == [0, 0], first.output + second.output
        assert sum("connection" in line for line in first.lines) <= 60
