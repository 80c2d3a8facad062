"""The commands, one module each. They read what was asked, call the rest, and turn errors into one line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "run": "run this node of a training job (torchrun's flags)",
    "rehearse": "run a script with faults on this machine, and say whether it survives",
    "submit": "run what a job file describes, here or on a platform",
    "status": "show whether a job is training, and how fast",
    "events": "print what happened in a job, and why",
    "logs": "print the output of all ranks of a job, merged by time",
    "top": "show the ranks of a job, slowest first",
    "why": "explain the last fault of a job, and what it cost",
    "dashboard": "show a running job in a browser",
    "drain": "take a node out of a job",
    "scale": "set how many nodes a job uses",
    "stop": "stop a job on all of its nodes",
    "restart": "restart a running job with the code that is on disk now",
    "chaos": "hurt a running job on purpose, and say how it answered",
    "check": "check this node, or several together, and run nothing on them",
    "diagnose": "say what failed first in a job, and why, from its log directory",
    "report": "report where a run's time went, as one HTML file or as text",
    "metrics": "serve a job's metrics to Prometheus, or write them to a file",
    "replay": "run a journal of a coordinator through its decisions once more",
    "checkpoints": "list, verify, show and prune the checkpoints of a directory",
    "config": "print the effective settings and where each comes from",
    "k8s": "jobs on Kubernetes: install, submit, operator, manifests, render, convert",
    "token": "print a fresh secret for OUTLAST_TOKEN",
}
USAGE = "usage: outlast COMMAND …\n\n" + "".join(f"  {name:11} {what}\n" for name, what in COMMANDS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """The `outlast` program: runs the command that is named first."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE + "\n'outlast COMMAND --help' tells more.")
        return 0 if words else 2
    name = words[0]
    if name in ("--version", "-V"):
        from importlib import metadata

        print(f"outlast {metadata.version('outlast')}")
        return 0
    if name not in COMMANDS:
        print(f"outlast: error: no command {name!r}; {_hint(name)}", file=sys.stderr)
        return 2
    try:
        command = import_module(f"outlast.cli.{name}")
        result: int = command.main(words[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read what we print has seen enough, as in `outlast replay … | head`; at exit it is flushed again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print(f"outlast {name}: error: interrupted", file=sys.stderr)
        return 1
    return result


def _hint(name: str) -> str:
    if name.startswith("-") or name.endswith(".py"):
        return "did you mean `outlast run …`?"
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(COMMANDS)}"
