"""`outlast.ray.run` and `start`: jobs from a driver or a Ray job."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from msgspec.structs import replace

from outlast.jobs.loading import parse
from outlast.jobs.spec import JobSpec
from outlast.ray.detached import find_detached, start_detached
from outlast.ray.handle import OverseerThread, RayJob
from outlast.ray.overseer import RayOutcome
from outlast.ray.request import RayRequest, plan_request

log = logging.getLogger("overseer")

RESOURCES = {"CPU": "cpus", "GPU": "gpus"}


def run(script: str | Path, args: Sequence[object] = (), **options: Any) -> RayOutcome:
    """Run a training script on nodes of a Ray cluster, and wait for its end. Raises `outlast.JobFailed`.

    `options` are those of `start`. An interrupt stops the job.
    """
    job = start(script, args, **options)
    try:
        return job.result()
    except KeyboardInterrupt:
        log.warning("interrupted: stopping the job")
        job.stop()
        raise


def start(
    script: str | Path,
    args: Sequence[object] = (),
    *,
    nnodes: int | tuple[int, int] = 1,
    nproc_per_node: int | str = 1,
    resources_per_node: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    spares: int = 0,
    max_restarts: int = 3,
    name: str = "",
    directory: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
    log_dir: str = "",
    module: bool = False,
    share_nodes: bool = False,
    extension: str = "",
    detached: bool = False,
) -> RayJob:
    """Start a training script on nodes of a Ray cluster; returns at once.

    `nnodes`: how many nodes train, or (MIN, MAX). `resources_per_node`: what each needs, as Ray names it ({"GPU": 8}).
    `labels`: a label selector for the nodes. `settings`: those of docs/settings.md. `directory`: where the script runs;
    by default where the driver is, or what Ray's `working_dir` becomes on the nodes. `extension`: your failover
    extension, as package.module::Class. `detached`: the job outlives this driver;
    `attach` finds it again. Raises ValueError, in one line, for what cannot be.
    """
    least, most = (nnodes, nnodes) if isinstance(nnodes, int) else nnodes
    asked = dict(resources_per_node or {})
    content = {
        "name": name or f"{Path(script).stem}-{os.getpid()}",
        "run": str(script),
        "as": "module" if module else "script",
        "args": [str(arg) for arg in args],
        "nodes": f"{least}:{most}",
        "spares": spares,
        "processes": str(nproc_per_node),
        "max_restarts": max_restarts,
        "log_dir": log_dir,
        "env": dict(env or {}),
        "settings": {**(settings or {}), **({"dynamic_failover_extension": extension} if extension else {})},
        "ray": {"resources": asked or {"CPU": 1}, "labels": dict(labels or {}), "share_nodes": share_nodes},
    }
    spec = parse(content)
    return begin(plan_request(_placed(spec, directory), detached=detached))


def begin(request: RayRequest) -> RayJob:
    """Start what was planned, on the cluster that this process is connected to, or connects to now."""
    if not ray.is_initialized():
        ray.init(address=request.address or "auto", log_to_driver=True)
    return RayJob(request.job, start_detached(request) if request.detached else OverseerThread(request))


def attach(name: str) -> RayJob:
    """A detached job of this cluster, by its name. Raises ValueError."""
    if not ray.is_initialized():
        ray.init(address="auto")
    return RayJob(name, find_detached(name))


def _placed(spec: JobSpec, directory: str | Path | None) -> JobSpec:
    if directory is not None:
        return replace(spec, directory=str(directory))
    shipped = ray.is_initialized() and "working_dir" in ray.get_runtime_context().runtime_env
    return replace(spec, directory="" if shipped else str(Path.cwd()))
