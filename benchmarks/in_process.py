"""From a fault of one rank to re-entry of all ranks and to the next step: in place, forked, torchrun, and NVIDIA's.

A gloo training on one node, whose script takes some seconds to set up before its function (a compiled model, an index).
In every generation one rank raises, is killed or hangs. The workers themselves note when the fault happens, when the
function is entered and when its first step is done, by the machine's monotonic clock.

    python benchmarks/in_process.py --ranks 2 --faults raise kill hang
    python benchmarks/in_process.py --leak 1000       # restarts in a row: descriptors, threads, memory, samples, loss

nvidia-resiliency-ext (its Wrapper, all intervals at a tenth of a second) has one spare process for each fault, set up
before.

torchrun does not notice a hang, so it has no figure there. For the others a hang begins with the last heartbeat, and
they are told to take two seconds without one for a hang.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import peers
from processes import Run, launcher, machine, memory, table, until

PEER = Path(__file__).parent / "scripts" / "in_process_peer.py"
SOAK = Path(__file__).parents[1] / "tests" / "integration" / "scripts" / "in_place_soak.py"
PATIENCE = 200.0
NVIDIA = "nvidia-resiliency-ext"
LAUNCHERS = {
    "outlast, in place": ("outlast", "--ft-in-place-timeout=10"),
    "outlast, forked": ("outlast", "--ft-in-place-timeout=0"),
    "torchrun": ("torchrun", "--monitor-interval=0.1"),
    NVIDIA: (NVIDIA, ""),
}
WATCHED = "--ft-rank-heartbeat-timeout=2"

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import outlast
marks, fault, faults, setup = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
time.sleep(setup)

def note(what, life, rank):
    fds, tasks = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
    pages = open("/proc/self/statm").read().split()[1]
    line = f"{what} {life} {rank} {time.monotonic()} {fds} {tasks} {int(pages) * 4096} {os.getpid()}\\n"
    descriptor = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)

@outlast.restartable
def train():
    life, rank, world = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
    note("entered", life, rank)
    dist.init_process_group("gloo")
    value = torch.ones(1000)
    for step in range(10):
        dist.all_reduce(value)
        value /= world
        outlast.step()
        if step == 0:
            note("stepped", life, rank)
        if step == 5 and life < faults and rank == 1:
            note("fault", life, rank)
            if fault == "raise":
                raise ValueError("a fault")
            if fault == "kill":
                os.kill(os.getpid(), 9)
            time.sleep(1000)
    dist.destroy_process_group()

train()
"""


class Mark:
    """One line that a worker wrote."""

    def __init__(self, line: str) -> None:
        self.what, life, rank, at, fds, threads, memory, pid = line.split()
        self.life, self.rank, self.at, self.pid = int(life), int(rank), float(at), int(pid)
        self.fds, self.threads, self.memory = int(fds), int(threads), int(memory)


def run(name: str, flags: Sequence[str], fault: str, ranks: int, faults: int, setup: float) -> list[Mark]:
    """All that the workers of one job noted."""
    with tempfile.TemporaryDirectory() as directory:
        script, marks, log = (Path(directory) / each for each in ("train.py", "marks", "log"))
        script.write_text(SCRIPT)
        marks.touch()
        argv = command(name, flags, script, [str(marks), fault, str(faults), str(setup)], ranks, faults)

        def last_life() -> bool:
            return sum(line.startswith(f"stepped {faults} ") for line in marks.read_text().splitlines()) == ranks

        with Run(argv, log=log) as job:
            until(last_life, timeout=PATIENCE + 20 * faults, runs=[job], what="step after the last fault")
        return [Mark(line) for line in marks.read_text().splitlines()]


def command(name: str, flags: Sequence[str], script: Path, args: list[str], ranks: int, faults: int) -> list[str]:
    """The command line of a job with one node."""
    if name != NVIDIA:
        return launcher(name, f"--nproc-per-node={ranks}", f"--max-restarts={faults}", *flags, str(script), *args)
    home = peers.environment(NVIDIA, peers.DEFAULT_PLACE)
    if home is None:
        raise SystemExit(1)
    return [str(home / "bin" / "python"), str(PEER), *args, str(ranks), str(ranks + faults)]


def after(marks: Sequence[Mark], what: str) -> list[float]:
    """Seconds from each fault until the last rank had come so far in the next life, or a later one if that failed."""
    reached: dict[int, float] = {}
    for mark in marks:
        if mark.what == what:
            reached[mark.life] = max(mark.at, reached.get(mark.life, 0.0))
    faults = [mark for mark in marks if mark.what == "fault"]
    return [reached[min(life for life in reached if life > fault.life)] - fault.at for fault in faults]


def compare(options: argparse.Namespace) -> None:
    rows = []
    for fault in options.faults:
        for title, (name, flag) in LAUNCHERS.items():
            if title not in options.only or (name == "torchrun" and fault == "hang"):
                continue
            flags = [flag, *([WATCHED] if fault == "hang" else [])]
            try:
                marks = run(name, flags, fault, options.ranks, options.count, options.setup)
            except (RuntimeError, TimeoutError) as error:
                print(fault, title, "did not survive:", str(error).splitlines()[0], flush=True)
                continue
            # The first restart of a job may find no zygote yet.
            entered, stepped = (after(marks, what)[1:] for what in ("entered", "stepped"))
            spread = f"{min(stepped):.2f} to {max(stepped):.2f}"
            figures = [f"{statistics.median(entered):.3f}", f"{statistics.median(stepped):.3f}", spread]
            rows.append([fault, title, str(options.ranks), *figures])
            print(*rows[-1], flush=True)
    header = ["fault", "launcher", "ranks", "re-entry of all, s", "next step, s", "range, s"]
    print(table(header, rows))


def soak(restarts: int) -> None:
    """Restart so often; show what workers and agent have open, and whether the training was the undisturbed one."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        sizes = disturb(folder / "disturbed", restarts + 1, restarts)
        disturb(folder / "calm", restarts + 1, 0)
        lines = [line.split() for line in (folder / "disturbed" / "marks").read_text().splitlines()]
        histories = [json.loads((folder / each / "history").read_text()) for each in ("disturbed", "calm")]
    rows = []
    for rank in ("0", "1"):
        entries = [line for line in lines if line[1] == rank]
        for generation, _, pid, descriptors, threads, resident, _ in (
            entries[10],
            entries[len(entries) // 2],
            entries[-1],
        ):
            rows.append([f"rank {rank}", generation, pid, descriptors, threads, f"{int(resident) / 2**20:.1f}"])
    print(table(["process", "generation", "pid", "descriptors", "threads", "resident, MiB"], rows + sizes))
    samples = Counter(sample for step in histories[0] for share, _ in step for sample in share)
    entered = [float(line[-1]) for line in lines if line[1] == "0"]
    between = [later - earlier for earlier, later in itertools.pairwise(entered)][1:]
    print(f"\nsamples trained once: {sum(count == 1 for count in samples.values())} of {6 * (restarts + 1)}")
    print(f"losses equal to those of the undisturbed job: {histories[0] == histories[1]}")
    print(f"one generation: median {statistics.median(between):.3f} s, longest {max(between):.3f} s")


def disturb(folder: Path, steps: int, faults: int) -> list[list[str]]:
    """Run the soak's script; what its agent had open after 10 restarts and after the last."""
    folder.mkdir()
    (marks := folder / "marks").touch()
    flags = ["--nproc-per-node=2", f"--max-restarts={faults}", "--ft-crash-loop=0", "--ft-in-place-timeout=30"]
    sizes = []
    with Run(launcher("outlast", *flags, str(SOAK), str(folder), str(steps), str(faults)), log=folder / "log") as job:
        for generation in (11, faults + 1) if faults else ():

            def entered(generation: int = generation) -> bool:
                return any(line.startswith(f"{generation} 0 ") for line in marks.read_text().splitlines())

            until(entered, timeout=PATIENCE + 20 * faults, runs=[job], what=f"generation {generation}")
            descriptors, threads = (len(list(Path(f"/proc/{job.pid}", each).iterdir())) for each in ("fd", "task"))
            opened = [str(descriptors), str(threads), f"{memory(job.pid)[0]:.1f}"]
            sizes.append(["agent", str(generation), str(job.pid), *opened])
        (folder / "measured").touch()
        until((folder / "history").exists, timeout=PATIENCE, runs=[], what="end of the training")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--faults", nargs="+", default=["raise", "kill", "hang"])
    parser.add_argument("--count", type=int, default=4, help="faults in a job; the first is not counted")
    parser.add_argument("--setup", type=float, default=5.0, help="seconds of set-up before the function")
    parser.add_argument("--only", nargs="+", default=list(LAUNCHERS), choices=list(LAUNCHERS))
    parser.add_argument("--leak", type=int, default=0, metavar="RESTARTS")
    options = parser.parse_args()
    print(machine(), flush=True)
    if options.leak:
        soak(options.leak)
    else:
        compare(options)


if __name__ == "__main__":
    main()
