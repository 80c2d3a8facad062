"""`outlast run` as a function, for those who start jobs from Python.

import outlast.run

outlast.run.main(["--nproc-per-node=2", "train.py", "--epochs", "3"])
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence

from outlast import log
from outlast.agent.coordinator_link.link import CoordinatorUnreachable
from outlast.agent.launcher import launch_node
from outlast.agent.output.summary import failure_summary, forward_error_file, root_failure
from outlast.agent.output.torchrun_events import announce
from outlast.cli.request import parse
from outlast.dashboard.beside import dashboard_beside
from outlast.errors import JobFailed
from outlast.progress.beside import progress_beside
from outlast.protocol.membership import Over
from outlast.verdict import verdict_of


def main(argv: Sequence[str] | None = None) -> None:
    """Run this node of a job, with the flags of `outlast run` (by default those of this process).

    Returns when the job has succeeded. Raises `outlast.JobFailed` when it has not, and ValueError, before
    anything is started, for flags that do not go together or cannot be followed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("outlast.run.main handles signals: call it from the main thread of its process")
    launch, loaded = parse(sys.argv[1:] if argv is None else argv)
    logger = log.configure(loaded.settings.log_level, "agent")
    if launch.omp_default:
        logger.warning("OMP_NUM_THREADS is not set: it is 1 for each of the %d workers, tune it", launch.nproc)
    signals = [signal.SIGCHLD, *(signal.Signals[name] for name in launch.signals)]
    handlers = {number: signal.getsignal(number) for number in signals}  # the event loop does not put them back
    try:
        with dashboard_beside(loaded.settings), progress_beside(loaded.settings):
            over = asyncio.run(launch_node(launch, loaded.settings))
    except (OSError, CoordinatorUnreachable) as error:
        raise JobFailed(str(error)) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    announce(launch, over)
    if not over.success:
        raise _failed(launch.entrypoint, over)


def _failed(entrypoint: str, over: Over) -> JobFailed:
    if not over.failures:
        return JobFailed(over.reason)
    forward_error_file(root_failure(over.failures), os.environ)
    summary = failure_summary(entrypoint, over.failures)
    return JobFailed(over.reason, over.failures, summary=summary, verdict=verdict_of(over), final=over.final)
