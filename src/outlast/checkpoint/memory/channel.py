"""What keepers, and workers that restore, say to each other about snapshots: over TCP, with raw bytes between messages.

    reader, or a node with a copy to give         keeper
    Describe(snapshot, rank)                   →
                                               ←  Described(ticket) or No(why)
    Read(snapshot, rank, chunk)                →
                                               ←  Piece(length, digest) and the bytes, or No(why)
    Put(ticket)                                →
                                               ←  Go() or No(why)
    Piece and bytes, Piece and bytes, …        →
                                               ←  CopyDone() or No(why)

Who is at the other end, and that a message is whole and its own, is shown as between agents and coordinator
(`transport/wire.py`), with a key made of the job's token: who has the key, as workers do, can read and leave
snapshots, and cannot steer the job. The bytes of a piece are protected by the hash in the message before
them. It finds damage; that nobody forges them on the way is for TLS, under which the proofs cover the certificate.

Blocking: for threads of a keeper, and for workers. Nothing is unpickled.
"""

from __future__ import annotations

import socket
import ssl
from hashlib import blake2b, sha256

import msgspec
import xxhash

from outlast.checkpoint.memory.slot import Mark
from outlast.checkpoint.storage.format import CHUNK
from outlast.protocol.fields import UNREADABLE
from outlast.transport.unproved import HANDSHAKE
from outlast.transport.wire import CODE, HEADER, MAGIC, MAX_FRAME, NONCE, NotOutlast, Wire, WireError

PATIENCE = 10.0  # seconds for the other end to take or give anything at all
STRIDE = 1 << 20  # bytes that are read at a time, at most


class Describe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """What have you of this rank's shard?"""

    mark: Mark
    rank: int


class Described(msgspec.Struct, frozen=True, array_like=True, tag="described"):
    ticket: bytes


class ReadChunk(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Give me this chunk of it."""

    mark: Mark
    rank: int
    chunk: int


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Keep a copy of what this ticket says: its chunks follow, if the answer is `Go`."""

    ticket: bytes


class Go(msgspec.Struct, frozen=True, array_like=True, tag="go"):
    """Send it."""


class Piece(msgspec.Struct, frozen=True, array_like=True, tag="piece"):
    """The bytes of a chunk follow."""

    length: int
    digest: bytes


class CopyDone(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """It is there, whole."""


class No(msgspec.Struct, frozen=True, array_like=True, tag="no"):
    """It cannot be; in one line."""

    why: str


Message = Describe | Described | ReadChunk | Put | Go | Piece | CopyDone | No

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class Refused(Exception):
    """The other end cannot do what was asked; the message is its reason."""


def key_of(token: str) -> str:
    """What lets read and leave snapshots of a job, made of the token, which it does not tell."""
    return blake2b(token.encode(), digest_size=32, person=b"outlast keepers").hexdigest()


def digest_of(data: memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


class Channel:
    """One end of a connection on which both have proved that they know the key.

    channel = dial("10.0.0.2", 4711, key)
    channel.send(Read(("ab12", 7), rank=3, chunk=0))
    """

    def __init__(self, connection: socket.socket, wire: Wire) -> None:
        self._socket = connection
        self._wire = wire

    def send(self, message: Message, data: memoryview | None = None) -> None:
        self._socket.sendall(self._wire.pack(_encoder.encode(message)))
        if data is not None:
            self._socket.sendall(data)

    def receive(self) -> Message:
        """The next message. Raises `Refused` if it is a `No`, OSError, `WireError`."""
        header = self._exactly(HEADER)
        length = int.from_bytes(header[:4], "big")
        if length > MAX_FRAME:
            raise WireError(f"a message of {length} bytes is larger than the limit of {MAX_FRAME}")
        (payload,) = self._wire.feed(header + self._exactly(length))
        try:
            message: Message = _decoder.decode(payload)
        except UNREADABLE as error:
            raise WireError(str(error)) from error
        if isinstance(message, No):
            raise Refused(message.why)
        return message

    def fill(self, view: memoryview) -> None:
        """Read the bytes of a piece into memory."""
        while view:
            count = self._socket.recv_into(view, min(len(view), STRIDE))
            if count == 0:
                raise ConnectionResetError("the connection was closed")
            view = view[count:]

    def be_patient(self, seconds: float = PATIENCE) -> None:
        """Wait so long for the other end, whatever is asked of it next."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self.fill(memoryview(data))
        return bytes(data)

    def shake(self, *, client: bool) -> None:
        """Prove, and see proved, that both know the key. Raises `WireError`, OSError."""
        if client:
            self._socket.sendall(self._wire.hello)
            self._wire.feed(self._exactly(len(MAGIC) + NONCE + CODE))
            self._socket.sendall(self._wire.take())
        else:
            self._wire.feed(self._exactly(len(MAGIC) + NONCE))
            self._socket.sendall(self._wire.take())
            self._wire.feed(self._exactly(CODE))
        if not self._wire.ready:
            raise NotOutlast("it does not speak Outlast's protocol")


def dial(host: str, port: int, key: str, *, tls: bool = False, patience: float = PATIENCE) -> Channel:
    """A connection to a keeper. Raises OSError (ssl's errors among them), `WireError`."""
    connection = socket.create_connection((host, port), timeout=patience)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        binding = b""
        if tls:
            # No authority vouches for the certificate; the proof of the key does, for it covers the certificate.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            secure = context.wrap_socket(connection)
            binding = sha256(secure.getpeercert(binary_form=True) or b"").digest()
            connection = secure
        channel = Channel(connection, Wire(key, agent=True, binding=binding))
        channel.shake(client=True)
    except BaseException:
        connection.close()
        raise
    return channel


def welcome(connection: socket.socket, key: str, *, binding: bytes = b"") -> Channel:
    """The other end of `dial`, for a connection that was accepted. Closes it if it raises."""
    try:
        connection.settimeout(HANDSHAKE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        channel = Channel(connection, Wire(key, agent=False, binding=binding))
        channel.shake(client=False)
        channel.be_patient()
    except BaseException:
        connection.close()
        raise
    return channel


def length_of(size: int, chunk: int) -> int:
    """How many bytes this chunk has, of data of this size; 0 beyond its end.

    >>> length_of(CHUNK + 5, 1), length_of(CHUNK + 5, 2)
    (5, 0)
    """
    return max(0, min(CHUNK, size - chunk * CHUNK))
