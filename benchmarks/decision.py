"""From failure to decision: how long it takes to know what failed, and what is done about it.

    python benchmarks/decision.py [runs]

The diagnosis alone, of 64 workers with 200 lines each; and real jobs of four workers, by the clock that worker, agent
and coordinator share: from a worker's last instruction to the coordinator's word that its generation ends (the cause
and the strategy are in the report that it answers), and to the start of the next one, once nobody is alive.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from outlast.core.job.inputs import Reported
from outlast.diagnosis.cause import diagnose
from outlast.diagnosis.evidence import Evidence
from outlast.journal import Happened, read
from outlast.signatures import catalogue

SCRIPT = """
import os, sys, time
if os.environ["OUTLAST_GENERATION"] == "1":
    if os.environ["RANK"] != "0":
        time.sleep(60)
    time.sleep(1)  # at the very start, the agent is busy with other things
    for step in range(200):
        print(f"step {step} loss {2.0 / (step + 1):.4f} grad_norm 1.{step} lr 3.0e-4 tokens/s 12{step}45", flush=True)
    print("OSError: [Errno 28] No space left on device: '/ckpt/step_200.pt'", file=sys.stderr, flush=True)
    with open(sys.argv[1], "w") as file:
        file.write(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
    os._exit(1)
"""


def of_64_workers() -> float:
    """Seconds of CPU for one diagnosis: other work on the machine is not counted."""
    lines = [f"step {n} loss {n * 0.37:.4f} grad_norm 1.{n:03d} lr 3.0e-4 tokens/s 12{n}45" for n in range(199)]
    lost = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:4711"
    failed = [Evidence(rank=r, at=r, log=(*(f"[rank{r}]: {line}" for line in lines), lost)) for r in range(63)]
    failed.append(
        Evidence(rank=63, at=63, log=(*lines, "RuntimeError: CUDA error: an illegal memory access was encountered"))
    )
    began = time.process_time()
    found = diagnose(failed, catalogue())
    took = time.process_time() - began
    assert (found.root.evidence.rank, found.root.cause.name) == (63, "illegal-memory-access")
    return took


def of_a_job(place: Path) -> tuple[float, float]:
    """Seconds from a worker's end to the word that the generation ends, and to the start of the next one."""
    script, died, journal = place / "train.py", place / "died", place / "journal"
    script.write_text(SCRIPT)
    flags = ["--nproc-per-node=4", "--max-restarts=1", f"--ft-journal={journal}", f"--log-dir={place}", "--redirects=3"]
    command = [sys.executable, "-m", "outlast", "run", *flags, str(script), str(died)]
    subprocess.run(command, check=True, capture_output=True)
    failed, last = float(died.read_text()), None
    for record in read(journal.read_bytes()):
        if not isinstance(record, Happened) or not isinstance(record.event, Reported):
            continue
        report = record.event.report
        if report.failures and last is None:
            cause = report.failures[0].cause
            assert cause is not None
            assert cause.name == "disk-full"
            last = record.at
        if report.generation == 1 and report.clear:
            return last - failed if last is not None else float("nan"), record.at - failed
    raise RuntimeError("the journal does not show how the generation ended")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    catalogue()
    alone = [of_64_workers() for _ in range(runs)]
    jobs = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as place:
            jobs.append(of_a_job(Path(place)))
    told, again = zip(*jobs, strict=True)
    print("| from failure to … | median | worst |\n|---|---|---|")
    rows = (
        ("a diagnosis of 64 workers with 200 lines each, alone (CPU)", alone),
        ("the decision: evidence, cause and strategy known to the coordinator, workers told to stop", told),
        ("all workers gone (restart_grace is 50 ms of it), and the next generation started", again),
    )
    for what, times in rows:
        print(f"| {what} | {statistics.median(times) * 1000:.1f} ms | {max(times) * 1000:.1f} ms |")


if __name__ == "__main__":
    main()
