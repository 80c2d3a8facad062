"""A process that becomes the command of a worker, bound near its GPU.

It runs in the worker's process, not in the agent's, because only torch knows which CPUs are near a GPU.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType

# The same function; later versions of torch made its name private.
_WRAPPERS = ("_maybe_wrap_command_args_with_numa_binding", "maybe_wrap_command_args_with_numa_binding")


def main(argv: Sequence[str]) -> None:
    """Replace this process by the command, behind torch's own `numactl` arguments."""
    if len(argv) < 4 or argv[2] != "--" or not argv[1].isdecimal():
        raise SystemExit("usage: MODE LOCAL_RANK -- COMMAND [ARGUMENT…]")
    mode, local_rank, command = argv[0], int(argv[1]), tuple(argv[3:])
    command = _bound(_binding(), mode, local_rank, command)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise SystemExit(f"outlast: cannot run {command[0]!r}: {error.strerror}") from None


def _binding() -> ModuleType:
    try:
        binding = importlib.import_module("torch.numa.binding")
    except ModuleNotFoundError:
        raise SystemExit(_NO_BINDING) from None
    if not any(hasattr(binding, name) for name in _WRAPPERS):
        raise SystemExit(_NO_BINDING)
    return binding


_NO_BINDING = "outlast: this torch cannot bind to NUMA nodes: leave --numa-binding out, or install a newer torch"


def _bound(binding: ModuleType, mode: str, local_rank: int, command: tuple[str, ...]) -> tuple[str, ...]:
    wrap = next(getattr(binding, name) for name in _WRAPPERS if hasattr(binding, name))
    # torch logs a traceback before it raises what we put into one line.
    logging.getLogger(binding.__name__).disabled = True
    try:
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        wrapped: tuple[str, ...] = wrap(command, gpu_index=local_rank, numa_options=options)
    except (RuntimeError, ValueError, AssertionError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SystemExit(
            f"outlast: --numa-binding={mode} failed: {reason}; remove the flag to continue without it"
        ) from None
    return wrapped


def run() -> None:
    """The process, as the agent starts it."""
    main(sys.argv[1:])
