"""What the user asked for, as plain data: read from the command line, never changed after."""

from __future__ import annotations

from enum import IntFlag
from ipaddress import ip_address

import msgspec

from outlast.protocol.roles import TaskRole


class Std(IntFlag):
    """Which of a worker's streams; the numbers are torchrun's (`--redirects 3`)."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers' output goes. `log_dir` None: a temporary directory for the error files alone."""

    log_dir: str | None = None
    redirects: dict[int, Std] | Std = Std.NONE
    tee: dict[int, Std] | Std = Std.NONE
    ranks: frozenset[int] = frozenset()  # local ranks shown on the console; empty: all
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix: str | None = None  # template with ${role_name}, ${rank}, ${local_rank}
    specs: str | None = None  # a `torchrun.logs_specs` entry point


class Endpoint(msgspec.Struct, frozen=True):
    """Where the job's coordinator listens. Port 0: any free one (only for a job on this machine alone)."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether it says itself that it is for this machine alone.

        What a name leads to is no proof: many systems lead a machine's own name to 127.0.1.1.
        """
        try:
            return self.host == "localhost" or ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    @property
    def relay(self) -> Endpoint:
        """Where a node that does not host the coordinator passes observers on to it.

        Not at the same port: agents look for their coordinator there, and must not find it through another node.
        """
        return Endpoint(self.host, self.port + 1)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One `outlast run`, as this node was asked to take part in it."""

    job: str
    min_nodes: int
    max_nodes: int
    nproc: int
    role: str
    command: tuple[str, ...]  # argv of every worker; "${local_rank}" in it is filled in per worker
    entrypoint: str  # the script, module or program, as messages name it
    endpoint: Endpoint
    others: tuple[Endpoint, ...] = ()  # where the coordinator may be when the endpoint's host is lost
    host: bool | None = None  # whether this node hosts the coordinator; None: if the endpoint is its own
    store_port: int = 0  # that the user has chosen for the workers' store; 0: a new one for each generation
    node_rank: int | None = None  # as given by --node-rank; None: not given
    local_addr: str | None = None
    max_restarts: int = 0
    signals: tuple[str, ...] = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    shutdown_timeout: float = 30.0
    virtual_local_rank: bool = False
    numa_binding: str | None = None
    event_log_handler: str = "null"
    omp_default: bool = False  # OMP_NUM_THREADS=1 was chosen for the user, who had not set it
    logs: Logs = Logs()
    own_token: str = ""  # file of a token that was made for this job alone, for this node to remove at its end
    check_only: bool = False  # nothing is run: nodes are checked, and that is all
    roles: tuple[TaskRole, ...] = ()  # of a job whose tasks are not alike: nproc is the sum of them
