"""The probe of `outlast rehearse`: what a training script does, seen from inside, with no line of it changed.

Only there when OUTLAST_PROBE names a directory. It writes one file of JSON lines per rank and generation, and carries
out the faults that a plan in that directory asks for, each exactly once and at exactly its step.

Loaded before the script, so nothing is imported here that Python has not imported by itself.
"""

from __future__ import annotations

import os

VARIABLE = "OUTLAST_PROBE"


def install() -> None:
    """Watch this process from now on, if a rehearsal asks for it."""
    if os.environ.get(VARIABLE):
        from outlast.worker.probe.watch import watch

        watch(os.environ[VARIABLE])
