"""`outlast run`: torchrun's command line, for a job that outlasts its failures."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from outlast.agent import supervisor
from outlast.cli.flags import given_settings, parser
from outlast.cli.request import _conf
from outlast.errors import JobFailed
from outlast.settings.loading import load
from outlast.settings.settings import Settings
from outlast.system import own_process

NO_REQUEUE = 93  # as nvidia-resiliency-ext has it


def main(argv: Sequence[str]) -> int:
    """Run this node of the job; torchrun's exit codes: 0 for success, 1 for a failed job or a bad request.

    Beyond them `NO_REQUEUE`, for a job that would fail again.

    With `supervise`, this process becomes the supervisor of the agent, and does not return here.
    """
    try:
        if not supervisor.bound() and _settings(argv).supervise:
            supervisor.become(own_process.command("outlast.cli.run:supervised", str(os.getpid()), *argv))
        import outlast.run  # not before: a supervisor has no use for it

        outlast.run.main(argv)
    except JobFailed as failed:
        if failed.failures:
            _tell(str(failed))
        if failed.verdict is not None:
            _tell(failed.verdict.text())
        _tell(f"outlast run: error: {failed.reason}")
        return NO_REQUEUE if failed.final else 1
    except ValueError as error:
        _tell(f"outlast run: error: {error}")
        return 1
    return 0


def supervised() -> int:
    """The agent of a supervisor, whose pid is the first argument."""
    supervisor.bind(int(sys.argv[1]))
    return main(sys.argv[2:])


def _tell(text: str) -> None:
    # A terminal that is gone or a disk that is full is no crash: a supervisor would run the job once more.
    with suppress(OSError):
        print(text, file=sys.stderr)


def _settings(argv: Sequence[str]) -> Settings:
    """The settings alone: to read all that is asked for may take seconds, where torch has to count devices."""
    args = parser(os.environ).read(argv, argparse.Namespace())
    conf = _conf(args.rdzv_conf)
    conf.pop("is_host", None)
    return load(given_settings(args), os.environ, args.ft_cfg_path, conf).settings
