"""What an agent costs that has nothing to do: `outlast run` and `torchrun`, side by side, each with a sleeping worker.

CPU time is what the kernel counted for the process (user and system); PSS shares pages that several processes use.

    python benchmarks/idle_agent.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from processes import Run, cpu_seconds, launcher, machine, memory, table, until

SLEEPER = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
time.sleep(600)
"""


class Watched:
    """A launcher with one sleeping worker, both up."""

    def __init__(self, name: str, place: Path, stack: ExitStack) -> None:
        script, up = place / "sleeper.py", place / f"{name}.up"
        script.write_text(SLEEPER)
        argv = launcher(name, "--standalone", "--nproc-per-node=1", str(script), str(up))
        self.name = name
        self.run = stack.enter_context(Run(argv, log=place / f"{name}.log"))
        until(up.exists, timeout=120, runs=[self.run], what=f"worker of {name}")

    def parts(self) -> dict[str, int]:
        """The processes to watch, by what they are; the worker is not one of them."""
        parts = {f"{self.name}: agent": self.run.pid}
        for process in self.run.tree()[1:]:
            if any("outlast.coordinator" in word for word in process.cmdline()):
                parts[f"{self.name}: coordinator"] = process.pid
        return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30, help="for which CPU time is counted")
    parser.add_argument("--settle", type=float, default=5, help="seconds between the workers' start and the counting")
    parser.add_argument("--quick", action="store_true", help="a few seconds: does it work?")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.settle = 5, 1
    print(f"{machine()}; over {args.seconds:g} s, all at the same time\n")
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        watched = [Watched(name, place, stack) for name in ("outlast", "torchrun")]
        pids = {part: pid for one in watched for part, pid in one.parts().items()}
        time.sleep(args.settle)
        before = {part: cpu_seconds(pid) for part, pid in pids.items()}
        time.sleep(args.seconds)
        cpu = {part: 100 * (cpu_seconds(pid) - before[part]) / args.seconds for part, pid in pids.items()}
        held = {part: memory(pid) for part, pid in pids.items()}
    rows = [[part, f"{cpu[part]:.3f}", *(f"{mib:.1f}" for mib in held[part])] for part in pids]
    ours, theirs = "outlast: agent", "torchrun: agent"
    ratios = [theirs_ / ours_ for ours_, theirs_ in zip(held[ours], held[theirs], strict=True)]
    rows.append(["torchrun's agent, times ours", f"{cpu[theirs] / cpu[ours]:.1f}", *(f"{r:.1f}" for r in ratios)])
    print(table(["process", "CPU, % of a core", "RSS, MiB", "PSS, MiB"], rows))


if __name__ == "__main__":
    main()
