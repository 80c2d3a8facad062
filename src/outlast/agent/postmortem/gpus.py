"""How the GPUs of this node are, when a worker has failed and may have failed of them.

Asked in a process of its own, for a driver that is stuck would hold up whoever asks it.
"""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from outlast.diagnosis.evidence import Evidence
from outlast.system import own_process

DRIVER = Path("/dev/nvidiactl")
LIMIT, FAREWELL = 2.0, 1.0  # seconds: for its answer, and for its end
# Not -m: see the coordinator's.
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)
_NAMED = re.compile(r"cuda|nccl|cudnn|cublas|nvidia|nvlink|\bgpu\b|\bxid\b", re.IGNORECASE)
_LAST = 40  # lines of its log


def concerned(evidence: Evidence) -> bool:
    """Whether there are GPUs, and this failure may have to do with them.

    >>> concerned(Evidence(rank=0, exit_code=1, exception="KeyError", message="'x'"))
    False
    """
    if not DRIVER.exists():
        return False
    texts = (evidence.exception, evidence.message, *evidence.kernel, *evidence.log[-_LAST:])
    return evidence.signal in CRASHES or any(_NAMED.search(text) for text in texts)


async def states(limit: float = LIMIT) -> tuple[str, ...]:
    """A line for each GPU, and one for each of its faults; nothing where nobody can say."""
    try:
        reader = await asyncio.create_subprocess_exec(
            *own_process.command("outlast.checks.nvml:main"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        return (f"the GPUs cannot be asked: {error.strerror}",)
    try:
        output, _ = await asyncio.wait_for(reader.communicate(), limit)
    except asyncio.TimeoutError:
        return (f"the driver of the GPUs does not answer within {limit:g} s",)
    finally:
        if reader.returncode is None:
            with suppress(ProcessLookupError, asyncio.TimeoutError):
                reader.kill()
                await asyncio.wait_for(reader.wait(), FAREWELL)  # it may not die, if the driver holds it
    return tuple(line for line in output.decode(errors="replace").splitlines() if line)
