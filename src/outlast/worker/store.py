"""Rank 0's store is not always there when the others ask for it: they wait for it here, and not in torch.

Forked workers come to `init_process_group` within milliseconds of each other. A rank that is refused, because rank 0
does not listen yet, is made to wait 0.3 to 0.7 s by torch, several times what the whole restart takes otherwise, and
we found no setting for it. So when torch is about to ask as one of the others, the port is tried first, every few
milliseconds. Only then, and only for the address that the agent gave: whatever else a script does with it is its own.

Loaded before the script, so nothing is imported here that Python has not imported by itself.
"""

from __future__ import annotations

import os

from outlast.worker import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta
    from types import ModuleType
    from typing import Any

    Meet = Callable[..., Iterator[Any]]

RENDEZVOUS = "torch.distributed.rendezvous"
PATIENCE = 10.0  # seconds; a rank 0 that takes longer is not late by chance, and torch's own pace will do
SHARE = 0.1  # of the timeout that torch was given, at most: it starts its clock only after us
TRY = 1.0  # seconds for one try: what does not even refuse is not a matter of milliseconds
PAUSES = (0.001, 0.1)  # seconds between two tries, at least and at most; else a quarter of the time waited so far


_address = ("", "")  # of the store, as the agent gave it


def begin_anew() -> None:
    """Take the address from the environment: of a worker that has just begun, or goes on in a new generation."""
    global _address
    _address = _given()


def await_before_asking() -> None:
    """Let torch, once it is imported, ask for the store of this worker's generation only when it is there."""
    begin_anew()
    if not _address[1].isdecimal():
        return

    def hook(rendezvous: ModuleType) -> None:
        meetings: dict[str, Meet] = getattr(rendezvous, "_rendezvous_handlers", {})
        for scheme in {"env", "tcp"} & meetings.keys():
            meetings[scheme] = _patient(meetings[scheme])

    imports.after(RENDEZVOUS, hook)


def _patient(meet: Meet) -> Meet:
    def meet_later(url: str, *args: Any, **options: Any) -> Iterator[Any]:
        if _asks(url) == _address:
            timeout: timedelta | None = options.get("timeout")
            patience = PATIENCE if timeout is None else min(PATIENCE, SHARE * timeout.total_seconds())
            await_listening(*_address, patience)
        # A generator: it begins when we have returned, so that no line of ours is in a traceback of torch's.
        return meet(url, *args, **options)

    return meet_later


def _given() -> tuple[str, str]:
    return os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")


def _asks(url: str) -> tuple[str, str] | None:
    """The address at which torch, given this URL, would ask for a store; None where it would be the store itself."""
    from urllib.parse import parse_qsl, urlsplit

    try:
        parts = urlsplit(url)
        rank = int(dict(parse_qsl(parts.query)).get("rank") or os.environ.get("RANK", "0"))
        address = _given() if parts.scheme == "env" else (parts.hostname or "", str(parts.port))
    except ValueError:
        return None  # torch will say what is wrong with it
    return address if rank > 0 else None


def await_listening(host: str, port: str, patience: float) -> None:
    """Wait until somebody listens there, for so many seconds. Any trouble but a refusal is left to torch, at once."""
    import socket
    import time

    began = time.monotonic()
    waited = 0.0
    while waited < patience:
        try:
            socket.create_connection((host, int(port)), timeout=TRY).close()
        except ConnectionRefusedError:
            least, most = PAUSES
            time.sleep(min(max(waited / 4, least), most))
            waited = time.monotonic() - began
        except OSError:
            return
        else:
            return
