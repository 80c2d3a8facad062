"""The `outlast run` that a job asks for, without what only a platform knows: where the nodes meet."""

from __future__ import annotations

from outlast.jobs.spec import JobSpec
from outlast.settings.settings import SETTINGS


def run_arguments(spec: JobSpec, *meeting: str) -> list[str]:
    """The arguments of `outlast` on every node; `meeting`: the flags that say where they meet.

    >>> run_arguments(JobSpec(name="j", run="train.py", args=("--steps", "4"), nodes="2"), "--rdzv-id=j")
    ['run', '--nnodes=2', '--nproc-per-node=1', '--max-restarts=3', '--rdzv-id=j', 'train.py', '--steps', '4']
    """
    flags = [f"--nnodes={spec.nodes}", f"--nproc-per-node={spec.processes}", f"--max-restarts={spec.max_restarts}"]
    flags += [f"{SETTINGS[name].flags[0]}={value}" for name, value in spec.settings.items()]
    if spec.log_dir:
        flags += [f"--log-dir={spec.log_dir}", "--tee=3"]
    kinds = {"script": [], "module": ["--module"], "program": ["--no-python"]}
    return ["run", *flags, *kinds[spec.kind], *meeting, spec.run, *spec.args]
