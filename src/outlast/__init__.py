"""Outlast keeps PyTorch training alive. This file is the public API and nothing else.

>>> import outlast.run
>>> outlast.run.main(["--nproc-per-node=2", "train.py"])  # doctest: +SKIP

Names are loaded when they are asked for: this file is also loaded before a training script begins.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.checkpoint.trainer.checkpointer import Checkpointer
    from outlast.checkpoint.trainer.per_rank import PerRank
    from outlast.data.accumulation import Accumulation
    from outlast.data.batch import BatchPlan
    from outlast.data.iterable import ElasticIterable
    from outlast.data.loader import ElasticLoader
    from outlast.data.sampler import ElasticSampler
    from outlast.data.seeds import sample_generator
    from outlast.data.shards import ElasticShards
    from outlast.errors import JobFailed
    from outlast.failover import FailoverExtension, FailoverStrategy, FailureInfo
    from outlast.platforms.plugins import ErrorMonitor, Platform
    from outlast.worker.health import RanksMissing, health_check
    from outlast.worker.in_place import GenerationOver
    from outlast.worker.restartable import restartable
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
    from outlast.worker.wrapper import CallWrapper, Wrapper

__all__ = [
    "Accumulation",
    "BatchPlan",
    "CallWrapper",
    "Checkpointer",
    "ElasticIterable",
    "ElasticLoader",
    "ElasticSampler",
    "ElasticShards",
    "ErrorMonitor",
    "FailoverExtension",
    "FailoverStrategy",
    "FailureInfo",
    "GenerationOver",
    "JobFailed",
    "PerRank",
    "Platform",
    "RanksMissing",
    "Wrapper",
    "calibrate",
    "calibration",
    "control",
    "end_all_sections",
    "end_section",
    "health_check",
    "heartbeat",
    "pause_monitoring",
    "restartable",
    "resume_monitoring",
    "sample_generator",
    "section",
    "start_section",
    "step",
]

# Where the names are that are not of the session.
_ROOMS = {
    "Accumulation": "outlast.data.accumulation",
    "BatchPlan": "outlast.data.batch",
    "CallWrapper": "outlast.worker.wrapper",
    "Checkpointer": "outlast.checkpoint.trainer.checkpointer",
    "ElasticIterable": "outlast.data.iterable",
    "ElasticLoader": "outlast.data.loader",
    "ElasticSampler": "outlast.data.sampler",
    "ElasticShards": "outlast.data.shards",
    "ErrorMonitor": "outlast.platforms.plugins",
    "FailoverExtension": "outlast.failover",
    "FailoverStrategy": "outlast.failover",
    "FailureInfo": "outlast.failover",
    "GenerationOver": "outlast.worker.in_place",
    "JobFailed": "outlast.errors",
    "PerRank": "outlast.checkpoint.trainer.per_rank",
    "Platform": "outlast.platforms.plugins",
    "RanksMissing": "outlast.worker.health",
    "Wrapper": "outlast.worker.wrapper",
    "health_check": "outlast.worker.health",
    "restartable": "outlast.worker.restartable",
    "sample_generator": "outlast.data.seeds",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # Kept: what is called in a training loop is not looked for each time.
    value = globals()[name] = getattr(import_module(_ROOMS.get(name, "outlast.worker.session")), name)
    return value
