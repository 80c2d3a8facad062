"""Slurm: a batch script, made from the job file and given to `sbatch`.

The script is plain shell and needs nothing but Slurm: the training may be in a container that has no Slurm, and the
script, outside of it, decides by exit codes what happens next.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.resources import files

import msgspec

from outlast.jobs.command import run_arguments
from outlast.jobs.spec import JobSpec
from outlast.providers.provider import JobProvider
from outlast.providers.slurm_growth import comment_of
from outlast.providers.slurm_queue import slurm_command

# Ignored by whoever does not ask for it: Slurm sends signals to every process of a step, and workers must not end.
DRAIN = "URG"
SIGNALS = f"--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIG{DRAIN}"


class SlurmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A batch script; `sbatch` reads it from its standard input."""

    script: str

    def text(self) -> str:
        """The script itself."""
        return self.script


class SlurmProvider(JobProvider[SlurmRequest]):
    """Submits batch jobs. `outlast`: the program on the nodes, unless the job file names another.

    `join`: the id of a running job, which `more` nodes join.
    """

    def __init__(self, outlast: str, *, join: str = "", more: int = 1) -> None:
        self._outlast = outlast
        self._join = join
        self._more = more

    def plan(self, spec: JobSpec) -> SlurmRequest:
        """The batch script of this job."""
        if "\n" in "".join((*spec.slurm.options, spec.slurm.partition, spec.slurm.account)):
            raise ValueError("slurm.options, partition and account must be one line each")
        if spec.slurm.relay and spec.training_nodes == 1:
            raise ValueError("a relay needs nodes: 2 or more; a job of one node is requeued at its time limit")
        body = (files("outlast.providers") / "slurm_batch.sh").read_text(encoding="utf-8")
        lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in self._options(spec))]
        lines += [f"# Made by `outlast submit` for the job {spec.name}: docs/slurm.md explains it.", ""]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items()]
        lines += [*spec.slurm.setup, *self._variables(spec)]
        return SlurmRequest(script="\n".join([*lines, "", body]))

    def submit(self, request: SlurmRequest) -> int:
        """Give it to `sbatch`, and say which job it has become."""
        job = slurm_command("sbatch", "--parsable", stdin=request.script).strip().partition(";")[0]
        print(f"submitted Slurm job {job}")
        return 0

    def _variables(self, spec: JobSpec) -> Iterator[str]:
        """What the body of the script is told."""
        node = ("--rdzv-backend=static", SIGNALS)
        command = [*shlex.split(spec.slurm.outlast or self._outlast), *run_arguments(spec, *node)]
        place = len(command) - len(spec.args) - 1  # before the script: where the body puts the flags of each node
        base = shlex.quote(spec.slurm.directory) if spec.slurm.directory else '"$HOME/.outlast/slurm"'
        yield f"base={base}"
        if self._join:
            yield f"set -- {shlex.quote(self._join)} join"
        yield f"before=({shlex.join(command[:place])})"
        yield f"after=({shlex.join(command[place:])})"
        yield f"srun_options=({shlex.join(spec.slurm.srun)})"
        yield f"requeue={int(spec.slurm.requeue)} least={spec.least_nodes} poll={spec.slurm.poll}"
        yield f"drain_bad_nodes={int(spec.slurm.drain_bad_nodes)}"
        yield f"relay={int(spec.slurm.relay)} relay_lead={spec.slurm.relay_lead} relay_warm={spec.slurm.relay_warm}"

    def _options(self, spec: JobSpec) -> Iterator[str]:
        need, slurm = spec.resources, spec.slurm
        yield f"--job-name={spec.name}"
        yield f"--nodes={self._more if self._join else slurm.nodes or spec.most_nodes}"
        yield "--ntasks-per-node=1"
        yield f"--chdir={spec.directory}"
        yield "--output=%x-%j.out"
        # The allocation outlives a lost node; logs of all starts go to one file; the notice comes to this script alone.
        yield from ("--no-kill", "--open-mode=append", f"--signal=B:USR1@{slurm.notice}")
        yield "--requeue" if slurm.requeue and not self._join else "--no-requeue"
        values = {
            "cpus-per-task": need.cpus,
            "gpus-per-node": need.gpus,
            "mem": need.memory.removesuffix("iB"),
            "time": need.time,
            "partition": slurm.partition,
            "account": slurm.account,
        }
        yield from (f"--{name}={value}" for name, value in values.items() if value)
        if self._join:
            yield f"--comment={comment_of(self._join)}"
            yield "--exclusive"  # else the nodes that join could be those of the job itself
        yield from slurm.options
