"""The worker's side of the agent's socket: ask, and wait for the answer (`agent/processes/worker_requests.py`).

A connection carries one question at a time, so there are as many as threads that ask at the same time; a fork makes
new ones. A question may be asked again: all of them are such that it changes nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.protocol.shards import Finding, Question, ShardQuestion, Unanswerable
from outlast.worker.session import session

VARIABLE = "OUTLAST_DESK"
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Finding)


class RequestClient:
    """Where a worker of a launcher asks.

    desk = Desk(os.environ)
    desk.ask(Take("train", life=1, saves=0))
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = f"\0{environ[VARIABLE]}"
        self._generation = int(environ["OUTLAST_GENERATION"])
        self._rank = int(environ["RANK"])
        self._process = os.getpid()
        self._idle: list[socket.socket] = []  # connections

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        while self._idle:
            self._idle.pop().close()

    def ask(self, question: Question) -> Finding:
        """The answer, however long it takes: for others to finish, or for a new coordinator. Raises RuntimeError."""
        payload = _encoder.encode(ShardQuestion(self._generation, self._rank, question))
        frame = len(payload).to_bytes(4, "big") + payload
        with session.pause_monitoring():  # who waits for others does not hang; they are watched
            try:
                finding: Finding = _decoder.decode(self._exchange(frame))
            except OSError as error:
                raise RuntimeError(f"this rank's agent does not answer any more ({error})") from error
        if isinstance(finding, Unanswerable):
            raise RuntimeError(finding.reason)
        return finding

    def _exchange(self, frame: bytes) -> bytes:
        link = self._link()
        try:
            link.sendall(frame)
            answer = _receive(link, int.from_bytes(_receive(link, 4), "big"))
        except BaseException:
            link.close()
            raise
        self._idle.append(link)
        return answer

    def _link(self) -> socket.socket:
        if self._process != os.getpid():  # a fork: these are its parent's
            self.close()
            self._process = os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.connect(self._address)
        except BaseException:
            link.close()
            raise
        return link


def _receive(link: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = link.recv(length - len(data))
        if not more:
            raise ConnectionResetError("it closed the connection")
        data += more
    return data
