"""The `outlast run` that a job asks for, without what only a platform knows: where the nodes meet."""

from __future__ import annotations

import shlex

from outlast.jobs.spec import JobSpec, RoleSpec
from outlast.settings.settings import SETTINGS


def run_arguments(spec: JobSpec, *meeting: str) -> list[str]:
    """The arguments of `outlast` on every node; `meeting`: the flags that say where they meet.

    >>> run_arguments(JobSpec(name="j", run="train.py", args=("--steps", "4"), nodes="2"), "--rdzv-id=j")
    ['run', '--nnodes=2', '--nproc-per-node=1', '--max-restarts=3', '--rdzv-id=j', 'train.py', '--steps', '4']
    """
    flags = [f"--nnodes={spec.nodes}", f"--nproc-per-node={spec.processes}", f"--max-restarts={spec.max_restarts}"]
    if spec.roles:
        flags = [f"--max-restarts={spec.max_restarts}"]
        flags += [word for name, role in spec.roles.items() for word in ("--role", role_text(name, role))]
    flags += [f"{SETTINGS[name].flags[0]}={value}" for name, value in spec.settings.items()]
    if spec.log_dir:
        flags += [f"--log-dir={spec.log_dir}", "--tee=3"]
    kinds = {"script": [], "module": ["--module"], "program": ["--no-python"]}
    return ["run", *flags, *kinds[spec.kind], *meeting, spec.run, *spec.args]


def role_text(name: str, role: RoleSpec) -> str:
    """What `--role` is given.

    >>> role_text("worker", RoleSpec(count=2, restart="role", memory="4GiB"))
    'worker=2,restart=role,memory=4GiB'
    """
    ends = None if role.ends is None else "yes" if role.ends else "no"
    options = {
        "restart": role.restart,
        "restarts": role.restarts,
        "ends": ends,
        "memory": role.memory,
        "max-memory": role.max_memory,
        "run": shlex.join([role.run, *role.args]) if role.run else "",
    }
    return ",".join([f"{name}={role.count}", *(f"{n}={v}" for n, v in options.items() if v not in ("", None))])
