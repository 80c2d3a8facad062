"""Does `outlast why` name cause and place? After each fault of the fault suite; prints the table, and n of n.

    python benchmarks/why.py [--quick]

Jobs of two nodes that go on after the fault (as in ledger.py) are asked by the command itself while they run. Jobs that
fail for good (tests/integration/test_causes.py) are over by then: what the command would say comes from their events.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ledger import Nodes, cause
from outlast.events.events import WorkerFailed
from outlast.ledger.summary import ledger, summarize
from outlast.observe.faults import why_paragraph
from outlast.reports.sources import recorded
from processes import table

FAULTS = Path(__file__).parents[1] / "tests" / "integration" / "scripts" / "faults.py"
CAUSES = {
    "missing_module": "import-error",
    "missing_file": "missing-file",
    "raises": "exception",
    "too_many_files": "open-files",
    "no_memory": "allocation-failed",
    "segfault": "segfault",
    "bus_error": "bus-error",
    "port_in_use": "port-in-use",
    "unknown_host": "name-resolution",
    "nan_loss": "nan-loss",
    "corrupt": "corrupt-data",
    "stale": "stale-file-handle",
    "ends_itself SIGKILL": "killed",
    "ends_itself SIGTERM": "preempted",
    "ends_itself SIGABRT": "aborted",
    "ends_itself SIGILL": "illegal-instruction",
    "ends_itself SIGFPE": "arithmetic-error",
    "leaves 14": "node-fault",
    "leaves 3": "unknown",
}
# What the paragraph must name: the place, and the cause.
LIVE = {
    "kill -9": ("on node ", "the process was killed"),
    "exception": ("rank 1 on node b", "RuntimeError"),
    "hang": ("rank 1 on node b", "blocks the others"),
    "node lost": ("node b", "its connection closed"),
}


class Told(NamedTuple):
    """What was said after one fault."""

    fault: str
    place: bool
    cause: bool
    text: str


def live(fault: str) -> Told:
    """A job that goes on: the command is run while it does."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="why-")))
        nodes = Nodes(folder, fault, stack)
        since = cause(nodes)
        assert since is not None
        nodes.await_training(after=since)
        command = [sys.executable, "-m", "outlast", "why", "--endpoint", nodes.endpoint]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for process in nodes.processes.values():
            process.wait(180)
        place, named = LIVE[fault]
        return Told(fault, place in text, named in text, text.strip())


def over(kind: str, name: str) -> Told:
    """A job that fails for good."""
    with tempfile.TemporaryDirectory(prefix="why-") as directory:
        place = Path(directory)
        flags = [
            "--max-restarts=1",
            "--ft-warm-start=false",
            "--ft-node-name=gpu-01",
            f"--ft-events={place}/events.jsonl",
        ]
        argv = [sys.executable, "-m", "outlast", "run", *flags, f"--log-dir={place}/logs", "--redirects=3"]
        subprocess.run([*argv, str(FAULTS), *kind.split()], capture_output=True)
        events = recorded([place / "events.jsonl"])[0].events
        text = why_paragraph(events, summarize(ledger(events)))
        failure = [each.event.failure for each in events if isinstance(each.event, WorkerFailed)][-1]
        return Told(kind, "rank 0 on node gpu-01" in text, failure.cause == name and failure.title in text, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two faults of each sort")
    args = parser.parse_args()
    few = 2 if args.quick else None
    found = [live(fault) for fault in list(LIVE)[:few]]
    found += [over(kind, name) for kind, name in list(CAUSES.items())[:few]]
    rows = [[each.fault, str(each.place), str(each.cause), each.text.partition(": ")[2][:110]] for each in found]
    print(table(["fault", "place", "cause", "what it says"], rows))
    good = sum(each.place and each.cause for each in found)
    print(f"\ncause and place are named: {good} of {len(found)}")
    return 0 if good == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
