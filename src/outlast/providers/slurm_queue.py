"""Slurm's own commands, as a user runs them on a login node."""

from __future__ import annotations

import shutil
import subprocess


def slurm_command(program: str, *arguments: str, stdin: str = "") -> str:
    """What one of Slurm's programs prints. Raises ValueError, in one line, if it is not there or refuses."""
    path = shutil.which(program)
    if path is None:
        raise ValueError(f"there is no {program} on this machine: run this on a login node of the cluster")
    said = subprocess.run([path, *arguments], input=stdin, capture_output=True, text=True, check=False)
    if said.returncode:
        reason = " ".join(said.stderr.split()) or f"exit code {said.returncode}"
        raise ValueError(f"{program} refused: {reason}")
    return said.stdout


def queue_state(job: str) -> str:
    """What Slurm says of a job in its queue, as `PENDING (Resources)`; empty: it has none, or cannot be asked."""
    try:
        said = slurm_command("squeue", "--noheader", f"--jobs={job}", "--format=%T (%r)")
    except ValueError:
        return ""
    return said.strip().partition("\n")[0].removesuffix(" (None)")
