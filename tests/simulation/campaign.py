"""Many schedules, one after the other: `python tests/simulation/campaign.py --seeds 0:100000`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from in_place_world import InPlaceSimulation
from invariants import Violation
from simulator import Simulation

STORY_LINES = 40
REPLAYED = 8  # one in so many schedules is replayed from its journal


def run(seed: int, *, world: type[Simulation] = Simulation, planned: bool = False, whole: bool = False) -> Simulation:
    """One schedule to its end, and some of them a second time from the journal."""
    simulation = world(seed, planned=planned, whole=whole)
    simulation.run()
    if seed % REPLAYED == 0:
        simulation.replay()
    return simulation


def tell(
    seed: int,
    lines: int = STORY_LINES,
    *,
    world: type[Simulation] = Simulation,
    planned: bool = False,
    whole: bool = False,
) -> str:
    """The story of a schedule that breaks an invariant: what happened just before."""
    simulation = world(seed, trace=True, planned=planned, whole=whole)
    try:
        simulation.run()
        simulation.replay()
        end = "it does not break anything"
    except Exception:  # noqa: BLE001 - whatever it is, the story comes before it
        end = traceback.format_exc()
    story = (simulation.story or [])[-lines:]
    return "\n".join([f"seed {seed}", str(simulation.schedule), *story, end])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="first:last, the last not included")
    parser.add_argument("--story", type=int, default=STORY_LINES, help="how many lines before a violation are shown")
    parser.add_argument("--keep-going", action="store_true", help="count violations instead of stopping at the first")
    parser.add_argument("--planned", action="store_true", help="ranks save before nodes join and drain")
    parser.add_argument("--whole", action="store_true", help="default settings, and all that workers and agents do")
    parser.add_argument("--in-place", action="store_true", help="workers leave their generation without ending")
    arguments = parser.parse_args()
    world = InPlaceSimulation if arguments.in_place else Simulation
    first, last = (int(part) for part in arguments.seeds.split(":"))
    began = time.process_time()  # other work on this machine does not count
    events, virtual, generations, lives, said = 0, 0.0, 0, 0, 0
    endings: Counter[str] = Counter()
    broken: dict[str, list[int]] = {}
    for seed in range(first, last):
        try:
            simulation = run(seed, world=world, planned=arguments.planned, whole=arguments.whole)
        except (AssertionError, LookupError, TypeError, AttributeError) as error:
            name = error.invariant if isinstance(error, Violation) else f"crash: {error!r}"
            broken.setdefault(name, []).append(seed)
            if not arguments.keep_going:
                break
            continue
        events += simulation.events
        virtual += simulation.t
        generations += simulation.generations
        lives += len(simulation.lives)
        said = max(said, simulation.most_said)
        endings[ending(simulation)] += 1
    took = time.process_time() - began
    done = sum(endings.values())
    print(f"{done} schedules in {took:.1f} s of CPU ({done / took:.0f}/s), {events} events, ", end="")
    print(f"{virtual / 3600:.1f} simulated hours ({virtual / took:.0f} per hour of CPU), ", end="")
    print(f"{generations} generations, {lives} coordinators, {said} messages in a heartbeat at most")
    print(", ".join(f"{count} {what}" for what, count in endings.most_common()))
    for invariant, seeds in broken.items():
        print(f"BROKEN {invariant}: {len(seeds)} seeds, {seeds[:8]}")
    for seeds in broken.values():
        print(tell(seeds[0], arguments.story, world=world, planned=arguments.planned, whole=arguments.whole))
    return 1 if broken else 0


def ending(simulation: Simulation) -> str:
    """How it ended: for all, or for those that nobody else went on without."""
    if not simulation.endings:
        return "run on"
    reasons = {
        "--max-restarts": "failed for restarts",
        "are here": "lost its quorum",
        "pend_timeout": "waited in vain",
        "interrupted": "interrupted",
    }
    if any(over.success for over in simulation.endings):
        return "succeeded"
    named = (name for mark, name in reasons.items() if mark in simulation.endings[-1].reason)
    return next(named, "lost all nodes")


if __name__ == "__main__":
    sys.exit(main())
