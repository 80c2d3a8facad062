"""Jobs on Ray: one actor per node, each with an agent; an overseer that asks Ray for nodes and watches the job.

import outlast.ray

outlast.ray.run("train.py", nnodes=(2, 4), resources_per_node={"GPU": 8})

Decisions are in `reconcile`, and pure; only `cluster` and `agent_actor` call Ray. Nothing here loads torch.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.ray.driver import attach, run, start
    from outlast.ray.handle import RayJob

__all__ = ["RayJob", "attach", "run", "start"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("outlast.ray.handle" if name == "RayJob" else "outlast.ray.driver"), name)
