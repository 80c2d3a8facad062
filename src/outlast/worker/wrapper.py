"""`outlast.Wrapper`: `restartable` with the names of nvidia-resiliency-ext's in-process Wrapper, for who migrates.

What Outlast does itself, or does otherwise, is accepted and has no effect; one line of the log says which.
"""

from __future__ import annotations

import functools
import logging
import os
import typing
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from outlast.worker.restartable import restartable
from outlast.worker.session import heartbeat

# Which setting of `outlast run` is there instead; docs/in-process.md has the same table.
INSTEAD = {
    "store_factory": "the coordinator",
    "store_kwargs": "the coordinator",
    "abort": "connections of process groups are cut",
    "completion": "the exit codes of workers",
    "terminate": "the exit codes of workers",
    "rank_assignment": "--nnodes=MIN:MAX",
    "monitor_thread_interval": "nothing is polled",
    "monitor_process_interval": "nothing is polled",
    "heartbeat_interval": "nothing is polled",
    "progress_watchdog_interval": "nothing is polled",
    "soft_timeout": "--ft-rank-heartbeat-timeout",
    "hard_timeout": "--ft-in-place-timeout",
    "heartbeat_timeout": "--node-timeout",
    "barrier_timeout": "--node-timeout",
    "completion_timeout": "--node-timeout",
    "last_call_wait": "--ft-last-call",
    "termination_grace_time": "--ft-restart-grace",
    "monitor_process_logfile": "--log-dir",
    "monitor_process_pidfile": "--log-dir",
}

log = logging.getLogger("outlast")

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class WrapperState:
    """What hooks are told: this rank, now and when the function was first called in this process."""

    rank: int
    world_size: int
    initial_rank: int
    initial_world_size: int
    iteration: int = 0  # restarts of the job
    fn_exception: str = ""  # what the function raised on this rank, in a hook after it

    @property
    def active_rank(self) -> int:
        return self.rank

    @property
    def active_world_size(self) -> int:
        return self.world_size


Hook = Callable[[WrapperState], Any]


class CallWrapper:
    """The call that is under way, for an argument of the function that is annotated with this class."""

    def __init__(self) -> None:
        rank, world_size = _rank(), _world_size()
        self.state = WrapperState(rank, world_size, rank, world_size)

    @property
    def iteration(self) -> int:
        """How often the job was restarted."""
        return self.state.iteration

    def ping(self) -> None:
        """Say that this rank gets on: `outlast.heartbeat`."""
        heartbeat()

    def enter(self) -> None:
        iteration = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.state = replace(self.state, rank=_rank(), world_size=_world_size(), iteration=iteration, fn_exception="")


class Wrapper:
    """Restart the function in place, as `outlast.restartable` does, with nvidia-resiliency-ext's arguments.

    `initialize(state)` is called before the function, each time it is entered; `finalize(state)` after it was left
    because of a fault, then `health_check(state)`. A rank on which one of the latter two raises is replaced by a new
    process. All other arguments have no effect.
    """

    def __init__(
        self,
        *,
        initialize: Hook | None = None,
        finalize: Hook | None = None,
        health_check: Hook | None = None,
        enabled: bool = True,
        **others: object,
    ) -> None:
        if unknown := others.keys() - INSTEAD.keys():
            raise TypeError(f"Wrapper has no argument {', '.join(sorted(unknown))}")
        if others:
            named = "; ".join(f"{name} (instead: {INSTEAD[name]})" for name in others)
            log.warning("outlast.Wrapper: without effect: %s", named)
        self.initialize, self.finalize, self.health_check, self.enabled = initialize, finalize, health_check, enabled

    def __call__(self, function: Function) -> Function:
        if not self.enabled:
            return function
        wanted = _arguments(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **options: Any) -> Any:
            call = CallWrapper()
            given = options | {name: call for name in wanted if name not in options}

            def hook(of: Hook | None) -> Callable[[], Any] | None:
                return None if of is None else lambda: of(call.state)

            @restartable(cleanup=hook(self.finalize), health_check=hook(self.health_check))
            def enter() -> Any:
                call.enter()
                if self.initialize is not None:
                    self.initialize(call.state)
                try:
                    return function(*args, **given)
                except Exception as error:
                    # Its text: the exception itself holds the function's frames, and with them its process groups.
                    call.state = replace(call.state, fn_exception=f"{type(error).__name__}: {error}")
                    raise

            return enter()

        return wrapped  # type: ignore[return-value]


def _arguments(function: Callable[..., Any]) -> list[str]:
    """Those that are annotated with CallWrapper, or CallWrapper or None."""
    hints = typing.get_type_hints(function)
    return [name for name, hint in hints.items() if hint is CallWrapper or CallWrapper in typing.get_args(hint)]


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
