"""Bytes between agent and coordinator: who is at the other end, and where a message begins and ends.

Both ends prove that they know the job's token without sending it: each answers the other's random challenge.
From the same secrets comes a key for each direction, and every frame carries a code made with it over its
number and its content: nobody without the token can join, add, change or repeat a message. (To keep others
from reading along, use TLS; then the proofs also bind the certificate, so that a man in the middle with
one of his own fails, even where no authority vouches for ours.)

    agent          MAGIC nonce                      →
                                                    ←  MAGIC nonce proof     coordinator
                   proof frame frame …              ↔  frame frame …

    frame: length (4 bytes) · code (16) · MessagePack

An observer's token is made from the job's token, and not the other way round. Whoever has nothing else says so in the
last byte of MAGIC; then both sides prove and sign with that token, and the coordinator knows that it may only read.

Sans-IO: bytes in, bytes and payloads out.
"""

from __future__ import annotations

import hmac
import os
from hashlib import blake2b

MAGIC = b"OUTLAST\x01"
READ_ONLY_MAGIC = b"OUTLAST\x02"
READ_ONLY_TOKEN = "observer-"  # how such a token begins
NONCE = CODE = 16
HEADER = 4 + CODE
MAX_FRAME = 1 << 20


def observer_token(token: str) -> str:
    """The token that lets its holder read what is going on in the job of this token, and nothing else.

    >>> observer_token("secret") == observer_token(observer_token("secret")) != observer_token("other")
    True
    """
    if token.startswith(READ_ONLY_TOKEN):
        return token
    return READ_ONLY_TOKEN + blake2b(token.encode(), digest_size=16, person=b"outlast observe").hexdigest()


def chaos_token(token: str) -> str:
    """The token by which faults may be asked for in the job of this token, if it was started with --allow-chaos.

    >>> chaos_token("secret").startswith("chaos-")
    True
    """
    return "chaos-" + blake2b(token.encode(), digest_size=12, person=b"outlast chaos").hexdigest()


class WireError(Exception):
    """The other end does not speak with us as it should; the message says what is wrong, for the log."""


class NotOutlast(WireError):
    """What answers is not Outlast at all."""


class WrongToken(WireError):
    """The other end does not know this job's token."""


class Wire:
    """One end of one connection.

    >>> a, c = Wire("secret", agent=True), Wire("secret", agent=False)
    >>> c.feed(a.hello), a.feed(c.take()), c.feed(a.take() + a.pack(b"hi"))
    ([], [], [b'hi'])
    """

    def __init__(self, token: str, *, agent: bool, binding: bytes = b"") -> None:
        self.ready = False
        self._agent = agent
        self._binding = binding
        self._token = token
        self._read_only = agent and token.startswith(READ_ONLY_TOKEN)
        self._secret = _secret(token)
        self._nonce = os.urandom(NONCE)
        self._challenge = b""
        self._buffer = bytearray()
        self._reply = b""
        self._key_in = self._key_out = b""
        self._count_in = self._count_out = 0

    @property
    def may_act(self) -> bool:
        """Whether the client has the job's own token, not only an observer's."""
        return not self._read_only

    @property
    def hello(self) -> bytes:
        """What an agent sends first."""
        return self._magic + self._nonce

    @property
    def _magic(self) -> bytes:
        return READ_ONLY_MAGIC if self._read_only else MAGIC

    def take(self) -> bytes:
        """What is to be sent in answer to what was fed in."""
        reply, self._reply = self._reply, b""
        return reply

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete with these bytes. Raises `WireError`: then close the connection."""
        self._buffer += data
        if not self.ready and not self._shake():
            return []
        payloads = []
        buffer, at = self._buffer, 0
        while len(buffer) - at >= HEADER:
            length = int.from_bytes(buffer[at : at + 4], "big")
            if length > MAX_FRAME:
                raise WireError(f"a message of {length} bytes is larger than the limit of {MAX_FRAME}")
            end = at + HEADER + length
            if len(buffer) < end:
                break
            payload = bytes(buffer[at + HEADER : end])
            code = _code(self._key_in, self._count_in, payload)
            if not hmac.compare_digest(code, bytes(buffer[at + 4 : at + HEADER])):
                raise WireError("a message was damaged or forged on the way")
            self._count_in += 1
            payloads.append(payload)
            at = end
        del buffer[:at]
        return payloads

    def pack(self, payload: bytes) -> bytes:
        """The frame to send for this payload."""
        if len(payload) > MAX_FRAME:
            raise ValueError(f"a message of {len(payload)} bytes is larger than the limit of {MAX_FRAME}")
        code = _code(self._key_out, self._count_out, payload)
        self._count_out += 1
        return len(payload).to_bytes(4, "big") + code + payload

    def _shake(self) -> bool:
        buffer = self._buffer
        if not self._challenge:
            known = min(len(buffer), len(MAGIC))
            expected = (self._magic,) if self._agent else (MAGIC, READ_ONLY_MAGIC)
            if not any(buffer[:known] == magic[:known] for magic in expected):
                raise NotOutlast("it does not speak Outlast's protocol")
            opening = len(MAGIC) + NONCE + (CODE if self._agent else 0)
            if len(buffer) < opening:
                return False
            self._challenge = bytes(buffer[len(MAGIC) : len(MAGIC) + NONCE])
            if not self._agent and buffer.startswith(READ_ONLY_MAGIC):
                self._read_only = True
                self._secret = _secret(observer_token(self._token))
            if self._agent:
                self._check(b"coordinator", bytes(buffer[len(MAGIC) + NONCE : opening]))
                self._reply = self._prove(b"agent")
                del buffer[:opening]
                return self._agree()
            self._reply = self._magic + self._nonce + self._prove(b"coordinator")
            del buffer[:opening]
        if len(buffer) < CODE:
            return False
        self._check(b"agent", bytes(buffer[:CODE]))
        del buffer[:CODE]
        return self._agree()

    def _prove(self, who: bytes) -> bytes:
        agent, coordinator = (self._nonce, self._challenge) if self._agent else (self._challenge, self._nonce)
        content = who + agent + coordinator + self._binding
        return blake2b(content, key=self._secret, digest_size=CODE, person=b"outlast proof").digest()

    def _check(self, who: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(self._prove(who), proof):
            raise WrongToken("it does not know this job's token")

    def _agree(self) -> bool:
        up, down = self._prove(b"agent to coordinator"), self._prove(b"coordinator to agent")
        self._key_out, self._key_in = (up, down) if self._agent else (down, up)
        self.ready = True
        return True


def _secret(token: str) -> bytes:
    return blake2b(token.encode(), digest_size=32, person=b"outlast token").digest()


def _code(key: bytes, count: int, payload: bytes) -> bytes:
    return blake2b(count.to_bytes(8, "big") + payload, key=key, digest_size=CODE).digest()
