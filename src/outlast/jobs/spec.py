"""The job file: plain data, the same on every platform."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

PLATFORMS = ("local", "slurm", "kubernetes", "ray")
NODES = r"^[1-9][0-9]{0,5}(:[1-9][0-9]{0,5})?$"
ROLE_NAME = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
MEMORY = r"^([0-9]+(K|M|G|T)iB)?$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


def _field(about: str, expects: str = "", **limits: Any) -> msgspec.Meta:
    """What the reference page says of a field, and how its error line ends: `must be …`."""
    return msgspec.Meta(description=about, extra={"expects": expects}, **limits)


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each node needs. What is not given is left to the platform."""

    cpus: Annotated[int, _field("CPUs per node.", "a whole number, 0 or more", ge=0)] = 0
    gpus: Annotated[int, _field("GPUs per node.", "a whole number, 0 or more", ge=0)] = 0
    memory: Annotated[str, _field("Memory per node.", "an amount such as 64GiB or 500MiB", pattern=MEMORY)] = ""
    time: Annotated[
        str,
        _field(
            "How long the job may run.",
            "a time such as 12:00:00 or 2-00:00:00, in quotes",
            pattern=r"^(([0-9]+-)?[0-9]{1,3}:[0-9]{2}:[0-9]{2})?$",
        ),
    ] = ""


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One role of a job whose tasks are not alike. What is not given follows from its name (docs/roles.md)."""

    count: Annotated[int, _field("Tasks of this role.", "a whole number, 1 to 4096", ge=1, le=4096)] = 1
    run: Annotated[str, _field("Its own script, module or program; empty: the job's.", "text")] = ""
    args: Annotated[tuple[str, ...], _field("Arguments of its own `run`.", "a list of texts")] = ()
    restart: Annotated[
        Literal["task", "role", "job", ""],
        _field("Who restarts when one of its tasks fails.", "one of task, role, job"),
    ] = ""
    restarts: Annotated[
        int | None,
        _field("How often its tasks restart by themselves in one generation; 3.", "a whole number, 0 or more"),
    ] = None
    ends: Annotated[
        bool | None, _field("Whether the job is over when all tasks of such roles have finished.", "true or false")
    ] = None
    memory: Annotated[
        str, _field("Memory that a task may use.", "an amount such as 4GiB or 500MiB", pattern=MEMORY)
    ] = ""
    max_memory: Annotated[
        str,
        _field(
            "How far `memory` is doubled when a task is killed for want of it; empty: four times.",
            "an amount such as 16GiB",
            pattern=MEMORY,
        ),
    ] = ""


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only Slurm needs to know."""

    partition: Annotated[str, _field("Partition to submit to.", "text")] = ""
    account: Annotated[str, _field("Account to charge.", "text")] = ""
    options: Annotated[
        tuple[str, ...], _field("More options of sbatch, one per item.", "a list of options such as --qos=high")
    ] = ()
    srun: Annotated[
        tuple[str, ...],
        _field("More options of srun, for a container plug-in for instance.", "a list of options such as --mpi=none"),
    ] = ()
    setup: Annotated[
        tuple[str, ...], _field("Shell lines to run first, on the first node.", "a list of shell lines")
    ] = ()
    nodes: Annotated[
        int,
        _field(
            "Nodes to ask for; 0: as many as can train, and the spares. Others may join later.",
            "a whole number, 0 or more",
            ge=0,
        ),
    ] = 0
    outlast: Annotated[str, _field("The `outlast` program on the nodes; empty: the one that submits.", "a command")] = (
        ""
    )
    notice: Annotated[
        int,
        _field("Seconds before the time limit at which all ranks save.", "a whole number, 1 to 3600", ge=1, le=3600),
    ] = 180
    relay: Annotated[
        bool, _field("Submit a successor that takes over before the time limit, without a gap.", "true or false")
    ] = False
    relay_lead: Annotated[
        int,
        _field(
            "With relay: seconds before the time limit at which the successor may start.",
            "a whole number, 10 to 604800",
            ge=10,
            le=604800,
        ),
    ] = 3600
    relay_warm: Annotated[
        int,
        _field(
            "With relay: seconds for the successor's nodes to import what training imports, before they take over.",
            "a whole number, 0 to 3600",
            ge=0,
            le=3600,
        ),
    ] = 30
    poll: Annotated[
        int,
        _field("Seconds between two looks whether Slurm drains nodes.", "a whole number, 1 to 3600", ge=1, le=3600),
    ] = 30
    requeue: Annotated[bool, _field("Put the job back into the queue when a retry can help.", "true or false")] = True
    drain_bad_nodes: Annotated[
        bool,
        _field("Set excluded nodes to DRAIN with `scontrol`; needs operator rights.", "true or false"),
    ] = False
    directory: Annotated[
        str,
        _field("Directory that all nodes see, for the job's token and state; empty: ~/.outlast/slurm.", "a path"),
    ] = ""


class RayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What only Ray needs to know."""

    address: Annotated[
        str, _field("Ray cluster to run on; empty: RAY_ADDRESS, or the one that this machine is part of.", "host:port")
    ] = ""
    resources: Annotated[
        dict[str, float], _field("More Ray resources per node, by name.", "names with numbers, as {accelerator: 1}")
    ] = {}
    labels: Annotated[
        dict[str, str], _field("Label selector for the nodes.", "names with texts, as {market-type: '!spot'}")
    ] = {}
    share_nodes: Annotated[
        bool, _field("Allow several agents of the job on one Ray node, where they fit.", "true or false")
    ] = False
    wait: Annotated[
        bool, _field("Stay until the job ends; false: submit it, and leave it to the cluster.", "true or false")
    ] = True


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job: what runs, on how many nodes, and with what.

    >>> JobSpec(name="j", run="train.py", nodes="2:4", spares=1).most_nodes
    5
    """

    name: Annotated[str, _field("Name of the job.", "1 to 63 letters, digits, dots, dashes", pattern=NAME)]
    run: Annotated[str, _field("The training script; or, by `as`, a module or a program.", "text", min_length=1)]
    kind: Annotated[
        Literal["script", "module", "program"],
        _field("What `run` names.", "one of script, module, program"),
    ] = msgspec.field(default="script", name="as")
    args: Annotated[tuple[str, ...], _field("Its arguments.", "a list of texts")] = ()
    nodes: Annotated[
        str, _field("Nodes that train: a number, or MIN:MAX.", "a number of nodes or MIN:MAX", pattern=NODES)
    ] = "1"
    spares: Annotated[
        int, _field("More nodes that wait to replace a lost one.", "a whole number, 0 or more", ge=0, le=100_000)
    ] = 0
    processes: Annotated[
        str,
        _field(
            "Workers per node.",
            "a number, auto, cpu, gpu or xpu",
            pattern=r"^([0-9]{1,4}|auto|cpu|gpu|xpu)$",
        ),
    ] = "1"
    roles: Annotated[
        dict[str, RoleSpec],
        _field("Roles of a job whose tasks are not alike, by name (roles.md).", "names with their options"),
    ] = {}
    max_restarts: Annotated[
        int, _field("How often failed workers are restarted.", "a whole number, 0 or more", ge=0, le=2**31 - 1)
    ] = 3
    directory: Annotated[str, _field("Directory to run in; relative to the job file.", "a path")] = "."
    log_dir: Annotated[str, _field("Directory for the workers' logs; empty: none are kept.", "a path")] = ""
    env: Annotated[dict[str, str], _field("Environment variables of the workers.", "names with texts")] = {}
    settings: Annotated[dict[str, str], _field("Settings of Outlast (settings.md), by name.", "names with values")] = {}
    resources: Annotated[Resources, _field("What each node needs.", "names with values")] = Resources()
    on: Annotated[
        Literal["local", "slurm", "kubernetes", "ray"],
        _field("Where the job runs unless --on says otherwise.", f"one of {', '.join(PLATFORMS)}"),
    ] = "local"
    slurm: Annotated[SlurmOptions, _field("What only Slurm needs to know.", "names with values")] = SlurmOptions()
    ray: Annotated[RayOptions, _field("What only Ray needs to know.", "names with values")] = RayOptions()

    @property
    def least_nodes(self) -> int:
        return int(self.nodes.partition(":")[0])

    @property
    def training_nodes(self) -> int:
        """How many nodes train at most."""
        return int(self.nodes.rpartition(":")[2])

    @property
    def most_nodes(self) -> int:
        """How many nodes are asked for, spares included."""
        return self.training_nodes + self.spares


def expects(kind: type[msgspec.Struct], name: str) -> str:
    """How an error line about a field ends.

    >>> expects(Resources, "cpus")
    'a whole number, 0 or more'
    """
    field = next(each for each in msgspec.structs.fields(kind) if each.encode_name == name)
    return str(field.type.__metadata__[0].extra["expects"])


def variable_name(text: str) -> bool:
    """Whether a shell takes this as the name of a variable."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None
