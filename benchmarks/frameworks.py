"""From kill -9 of one worker to the next step, for scripts that import a lot: Hugging Face's Trainer and Lightning.

The scripts are the ones in examples/, on two ranks. Run this with the Python of an environment that has Outlast,
transformers, accelerate, lightning and psutil; `--warm-start off` and torchrun are measured in the same run.

    python benchmarks/frameworks.py [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

from processes import HERE, Run, launcher, machine, table, until

PATIENCE = 60.0
NPROC = 2
ATTEMPTS = 3
SETTLED = 5.0  # seconds without news of the zygote: it has learned what there is
EXAMPLES = {"Hugging Face Trainer": "huggingface.py", "Lightning": "lightning_ddp.py"}
OURS = "outlast"
LAUNCHERS = {
    OURS: ("outlast", ["--ft-log-level=debug"]),
    "outlast, --warm-start off": ("outlast", ["--warm-start=off"]),
    "torchrun": ("torchrun", []),
}


def recoveries(name: str, example: str, kills: int) -> Iterator[float]:
    """One job; the seconds from each kill to rank 0's next step."""
    launcher_name, flags = LAUNCHERS[name]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limits = [f"--nproc-per-node={NPROC}", f"--max-restarts={4 * kills}", "--standalone", *flags]
        script = [str(HERE.parent / "examples" / example), "--steps=1000000", f"--output={place / 'output'}"]
        run = stack.enter_context(Run([*launcher(launcher_name, *limits), *script], log=place / "log"))
        until(lambda: _life(run) is not None, timeout=PATIENCE, runs=[run], what="first step")
        if name == OURS:
            _await_zygote(run)
        for _ in range(kills):
            time.sleep(random.uniform(2.0, 2.5))
            before, workers = _life(run) or 0, _workers(run, example)
            killed_at = time.monotonic()
            workers[-1].kill()
            until(lambda: (_life(run) or 0) > before, timeout=PATIENCE, runs=[run], what="recovery")  # noqa: B023
            yield time.monotonic() - killed_at


def measured(name: str, example: str, kills: int) -> tuple[list[float], int]:
    """The seconds of so many recoveries, and how many jobs were lost on the way: each was followed by another."""
    seconds: list[float] = []
    for lost in range(ATTEMPTS):
        try:
            for each in recoveries(name, example, kills - len(seconds)):
                seconds.append(each)  # noqa: PERF402  (what there was before a job is lost counts)
        except (RuntimeError, TimeoutError) as error:
            print(f"{example}, {name}: {error}\n", flush=True)
        else:
            return seconds, lost
    return seconds, ATTEMPTS


def _life(run: Run) -> int | None:
    """After how many restarts the workers that train now were started; None while they have made no step."""
    _, _, after = run.log.read_text(errors="replace").rpartition("restarts so far: ")
    return int(after.partition(")")[0]) if "\nstep " in after else None


def _await_zygote(run: Run) -> None:
    until(lambda: "zygote is ready" in run.log.read_text(errors="replace"), timeout=PATIENCE, what="zygote")
    seen, since = 0, time.monotonic()
    while time.monotonic() - since < SETTLED:
        news = run.log.read_text(errors="replace").count("zygote")
        if news != seen:
            seen, since = news, time.monotonic()
        time.sleep(0.1)


def _workers(run: Run, example: str) -> list[psutil.Process]:
    """Its workers: the processes that show the script's name, but the launcher, which shows it, too."""
    return [process for process in run.tree()[1:] if any(word.endswith(example) for word in process.cmdline())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one kill each")
    args = parser.parse_args()
    if args.quick:
        args.kills = 1
    print(f"{machine()}; {NPROC} ranks, {args.kills} kills each, seconds\n", flush=True)
    rows = []
    for framework, example in EXAMPLES.items():
        medians = {}
        for name in LAUNCHERS:
            seconds, lost = measured(name, example, args.kills)
            if seconds:
                medians[name] = statistics.median(seconds)
                ratio = f"{medians[name] / medians[OURS]:.1f}" if OURS in medians else "-"
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                rows.append(
                    [f"{framework}, {name}", f"{medians[name]:.2f}", spread, ratio, str(len(seconds)), str(lost)]
                )
    print(table(["script, launcher", "median", "least to most", "times ours", "kills", "jobs lost"], rows))


if __name__ == "__main__":
    main()
