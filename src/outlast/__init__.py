"""Outlast keeps PyTorch training alive. This file is the public API and nothing else.

>>> import outlast.run
>>> outlast.run.main(["--nproc-per-node=2", "train.py"])  # doctest: +SKIP

Names are loaded when they are asked for: this file is also loaded before a training script begins.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.checkpoint.checkpointer import Checkpointer
    from outlast.errors import JobFailed
    from outlast.worker.health import RanksMissing, health_check
    from outlast.worker.session import (
        calibrate,
        calibration,
        control,
        end_all_sections,
        end_section,
        heartbeat,
        pause_monitoring,
        resume_monitoring,
        section,
        start_section,
        step,
    )

__all__ = [
    "Checkpointer",
    "JobFailed",
    "RanksMissing",
    "calibrate",
    "calibration",
    "control",
    "end_all_sections",
    "end_section",
    "health_check",
    "heartbeat",
    "pause_monitoring",
    "resume_monitoring",
    "section",
    "start_section",
    "step",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "JobFailed":
        from outlast import errors as room
    elif name == "Checkpointer":
        from outlast.checkpoint import checkpointer as room  # type: ignore[no-redef]
    elif name in ("RanksMissing", "health_check"):
        from outlast.worker import health as room  # type: ignore[no-redef]
    else:
        from outlast.worker import session as room  # type: ignore[no-redef]
    # Kept: what is called in a training loop is not looked for each time.
    value = globals()[name] = getattr(room, name)
    return value
