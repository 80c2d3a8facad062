"""Where the nodes of a job meet when the user need not say it, and the token that they share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from outlast.settings.loading import Loaded
from outlast.transport import token as tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.platforms.slurm import Step

LOCALHOST = "127.0.0.1"  # the default of --master-addr


def own_token(loaded: Loaded, step: Step | None) -> str:
    """The file of the token that this node has to remove: the one that was made for this Slurm job, on its first node.

    Not the others: one that ends early must not take it from those that have not started yet.
    """
    named = loaded.origins["token"] != "default" or loaded.settings.token_file
    if step is None or step.rank != 0 or named or not loaded.settings.auth:
        return ""
    return str(step.token_file)


def with_token(loaded: Loaded, *, create: bool = False, step: Step | None = None) -> Loaded:
    """The same settings, with the token from its file, if that is where it is. Raises ValueError."""
    settings = loaded.settings
    path = settings.token_file or (str(step.token_file) if step is not None else "")
    changes: dict[str, str] = {}
    if path and settings.auth and not settings.token:
        changes["token"] = tokens.from_file(Path(path), create=create)
    if step is not None and step.node and not settings.node_name:
        changes["node_name"] = step.node  # as Slurm knows it: its name may be another than the host's
    return replace(loaded, settings=replace(settings, **changes)) if changes else loaded


def meet_in_step(args: argparse.Namespace, least: int, environ: Mapping[str, str]) -> Step | None:
    """In a Slurm step of several nodes they know where to meet, unless the user says where; None elsewhere.

    Fills in what the user left out: `--nnodes`, `--rdzv-endpoint`, `--rdzv-id`. Raises ValueError.
    """
    from outlast.platforms.slurm import outside_step, step_of

    static = args.master_port is not None or args.master_addr != LOCALHOST or args.node_rank is not None
    said = args.standalone or args.rdzv_endpoint or static
    step = None if said else step_of(environ)
    if step is None or (least == 1 and len(step.nodes) == 1):
        if not said and least > 1 and outside_step(environ):
            raise ValueError(
                f"--nnodes={args.nnodes}: this is one process of a Slurm job; start one per node with srun"
            )
        args.nnodes = args.nnodes or "1:1"
        return None
    args.nnodes = args.nnodes or str(len(step.nodes))
    if least > len(step.nodes):
        raise ValueError(
            f"--nnodes={args.nnodes}, but this Slurm step has {len(step.nodes)}: ask for more with srun -N"
        )
    args.rdzv_endpoint = ",".join(f"{node}:{step.port}" for node in step.nodes)
    args.rdzv_id = step.name if args.rdzv_id in ("none", "") else args.rdzv_id
    args.rdzv_backend = "static"
    return step
