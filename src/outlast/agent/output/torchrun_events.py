"""torchrun's events, for those who read them (`--event-log-handler=console`): how a node's part of a job ended.

A program that has torch loaded gets them through torch's own `events.record`, with the handlers that it has registered
there. `outlast run` has no torch, and writes what torch's console handler would.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from outlast.launch import Launch
from outlast.protocol.failures import Failure
from outlast.protocol.membership import Over


def announce(launch: Launch, over: Over, restarts: int = 0) -> None:
    """Write the events of the end, one JSON line each, if they were asked for."""
    torchs = sys.modules.get("torch.distributed.elastic.events")
    if torchs is not None:
        for event in _events(launch, over, restarts):
            source = torchs.EventSource(event["source"])
            torchs.record(torchs.Event(**{**event, "source": source}), launch.event_log_handler)
    elif launch.event_log_handler == "console":
        for event in _events(launch, over, restarts):
            with suppress(OSError):  # of a terminal that is gone, or a full disk: the job has ended as it has
                print(json.dumps(event), file=sys.stderr)


def _events(launch: Launch, over: Over, restarts: int) -> Iterator[dict[str, Any]]:
    host = socket.gethostname()
    yield _event(launch, "AGENT", over.success, None, None if over.success else over.reason, restarts)
    for failure in over.failures:
        if failure.host == host:
            yield _event(launch, "WORKER", False, failure, failure.error or failure.message, restarts)


def _event(
    launch: Launch, source: str, success: bool, failure: Failure | None, error: str | None, restarts: int
) -> dict[str, Any]:
    state = "SUCCEEDED" if success else "FAILED"
    details: dict[str, Any] = {"entry_point": launch.entrypoint}
    if failure is not None:
        details |= {
            "local_rank": [failure.local_rank],
            "exit_code": [failure.exit_code],
            "worker_pid": [failure.pid],
        }
    metadata = {
        "run_id": launch.job,
        "global_rank": failure.rank if failure is not None else None,
        "role": launch.role,
        "hostname": socket.gethostname(),
        "state": state,
        "rdzv_backend": "outlast",
        "raw_error": error,
        "metadata": json.dumps(details),
        "agent_restarts": restarts,
    }
    name = f"torchelastic.worker.status.{state}"
    return {"name": name, "source": source, "timestamp": int(1000 * time.time()), "metadata": metadata}
