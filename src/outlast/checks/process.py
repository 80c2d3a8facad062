"""One process of a check: the phases, one after the other, said aloud for the agent, which ends what takes too long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from outlast.checks.plan import MARK, NETWORK, VARIABLE, CheckPlan, Word

STDOUT = 1


def main() -> int:
    """Do what the environment says. A failure is said, not raised: the exit code is 0 unless this process dies."""
    plan = msgspec.json.decode(os.environ.pop(VARIABLE), type=CheckPlan)
    from outlast.checks.collectives import Failed, gather
    from outlast.checks.phases import UnfitNode, first_line

    try:
        gather(plan)
        carry_out(plan)
    except UnfitNode as unfit:
        say(Word(failed=str(unfit), certain=unfit.certain))
    except Failed as failed:
        say(Word(failed=str(failed)))
    except Exception as error:  # noqa: BLE001  (whatever a device or a plug-in raises is a finding)
        say(Word(failed=f"{type(error).__name__}: {first_line(error)}"))
    else:
        say(Word(phase="done"))
    return 0


def carry_out(plan: CheckPlan) -> None:
    """All phases of a probe."""
    from outlast.checks import collectives, phases
    from outlast.checks.accelerator import find

    first = plan.local_rank == 0
    with phase("device"):
        accelerator = find(plan.accelerator)
        count = accelerator.count()
        if not count:
            raise phases.UnfitNode(f"torch sees no {accelerator.device} here")
        index = plan.local_rank % count
        accelerator.use(index)
        say(Word(facts=phases.versions(accelerator)))
    if first:
        with phase("system"):
            for warning in phases.system():
                say(Word(warning=warning))
    with phase("health"):
        health = accelerator.health(index)
        for warning in health.warnings:
            say(Word(warning=f"{accelerator.device} {index}: {warning}"))
        if health.faults:
            raise phases.UnfitNode(f"{accelerator.device} {index}: {'; '.join(health.faults)}", certain=True)
    with phase("compute"):
        say(Word(figures={"compute": phases.compute(accelerator, plan.number)}))
    with phase("memory"):
        say(Word(figures={"memory": phases.memory(accelerator)}))
    if first and plan.path:
        with phase("disk"):
            rate, warnings = phases.disk(plan.path)
            say(Word(figures={"disk": rate}))
            for warning in warnings:
                say(Word(warning=warning))
    # Two processes cannot share a device in a collective of its own: then the CPUs have it.
    device = accelerator.device if plan.local_size <= count else "cpu"
    if plan.local_size > 1:
        with phase("local"):
            say(Word(figures={"local": collectives.local(accelerator, plan, device)}))
    if plan.size > plan.local_size:
        with phase(NETWORK):
            say(Word(figures=collectives.together(accelerator, plan, device)))


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Say that it begins: the agent looks at its clock."""
    say(Word(phase=name))
    yield


def say(word: Word) -> None:
    os.write(STDOUT, MARK + msgspec.json.encode(word) + b"\n")


def run() -> None:
    """All of a process's life; nothing is torn down, as threads of libraries may still be at work."""
    code = 1
    try:
        code = main()
    finally:
        os._exit(code)
