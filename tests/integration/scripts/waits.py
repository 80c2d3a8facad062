"""A worker that says that it has started, and then what signals it gets.

SIGUSR1 ends it with 0, SIGUSR2 with 7; other signals end it with 0, unless `--ignore SIGNAL…` names them.
`--journal FILE` keeps a line for every start, with the workers of older generations that are still alive then.
`--fail RANK…`: these ranks exit with 7 at once, in every generation up to `--until`.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]


def say(text: str) -> None:
    """One write for one line: workers share the console."""
    os.write(1, f"{text}\n".encode())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def enter(journal: Path, generation: int) -> None:
    # One file per process, named by what it is: nobody has to lock anything.
    older = [path.name.split("-") for path in journal.iterdir()]
    lingering = [pid for number, pid in older if int(number) < generation and alive(int(pid))]
    (journal / f"{generation}-{os.getpid()}").touch()
    if lingering:
        say(f"OVERLAP: generation {generation} started beside {' '.join(lingering)}")


parser = argparse.ArgumentParser()
parser.add_argument("--ignore", nargs="*", default=[])
parser.add_argument("--journal", type=Path)
parser.add_argument("--fail", nargs="*", type=int, default=[])
parser.add_argument("--until", type=int, default=sys.maxsize)
args = parser.parse_args()

signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
generation, rank = int(os.environ["OUTLAST_GENERATION"]), int(os.environ["RANK"])
if args.journal:
    enter(args.journal, generation)
say(
    f"rank {rank} of {os.environ['WORLD_SIZE']} started in generation {generation}: pid {os.getpid()}"
    f" restart {os.environ['TORCHELASTIC_RESTART_COUNT']} port {os.environ['MASTER_PORT']}"
)
if rank in args.fail and generation <= args.until:
    sys.exit(7)
while True:
    got = signal.Signals(signal.sigwait(SIGNALS))
    say(f"rank {rank} got {got.name} in generation {generation}")
    if got is signal.SIGUSR2:
        sys.exit(7)
    if got.name not in args.ignore:
        sys.exit(0)
