"""`outlast scale`: the job goes on with another number of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outlast.cli import asking, observing
from outlast.observe import Observer
from outlast.providers.slurm_growth import added_nodes, cancel_jobs, growth, submit_nodes


def main(argv: Sequence[str]) -> int:
    """Ask for it; nodes that are not used stay as spares. On Slurm, submit what is missing."""
    parser = observing.parser(
        "scale", "Sets how many nodes a job uses, from MIN to MAX of --nnodes. The others become spares."
    )
    parser.add_argument(
        "nodes", type=int, help="How many. With --slurm, missing nodes are submitted and surplus ones given back."
    )
    args = parser.parse(argv)

    async def adjust(observer: Observer) -> None:
        if args.slurm:
            await _adjust_slurm(args.slurm, args.nodes, observer)

    return asking.run("scale", args, lambda observer: observer.scale(args.nodes), then=adjust)


async def _adjust_slurm(job: str, wanted: int, observer: Observer) -> None:
    """Submit the nodes that are missing, or give back those that were added."""
    state = observing.slurm_state(job)
    job = state.name
    view = await observer.view("nodes")
    here = [node.name for node in view.nodes if node.connected and not node.leaving]
    todo = growth(wanted, here, await asyncio.to_thread(added_nodes, job))
    for number in await asyncio.to_thread(submit_nodes, job, state, todo.submit):
        print(f"submitted Slurm job {number}: one more node, which joins when it has started")
    if todo.cancel:
        await asyncio.to_thread(cancel_jobs, todo.cancel)
        print(f"cancelled the Slurm jobs of nodes that had not come yet: {', '.join(todo.cancel)}")
    for node in todo.drain:
        print((await observer.drain(node)).text)
