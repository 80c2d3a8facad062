"""What agent and coordinator say to each other. Plain data: nothing here acts, and nothing is unpickled.

Every message after `Join` is a full statement, not a step: it may be lost, doubled, late or out of order,
and the next one of its kind repairs it. What could be late carries its generation.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from outlast.diagnosis.observation import PLACES, Observation
from outlast.messages.checks import Findings, Probe
from outlast.messages.fields import Address, Count, Name, Port, Reason, Time
from outlast.messages.shards import Hands, Query, Told
from outlast.messages.snapshots import Held, Keeping, Stride

PROTOCOL = 4  # agents and coordinators of different numbers refuse each other, with a clear line
MOST_CULPRITS = 64  # that are told to agents by their ranks
MOST_SECTIONS = 8  # of a rank whose times are compared: those that take longest


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the job was asked to be. The same for its whole life, whoever coordinates it."""

    job: str
    entrypoint: str
    min_nodes: int
    max_nodes: int
    node_unit: int = 1
    max_restarts: int = 0
    infra_ranks: bool = True
    last_call: float = 3.0
    pend_timeout: float = 600.0
    empty_timeout: float = 10.0
    node_timeout: float = 3.0
    restart_grace: float = 0.05
    tie_break: bool = False  # of two nodes, one alone may go on, whichever it is
    failover: bool = False  # causes and history decide, not `max_restarts` alone
    crash_loop: int = 0  # so often the same failure without progress ends the job; 0: never
    exclude_for: float = 1800.0  # seconds that a node is left out
    eviction_limit: int = 3  # nodes left out in an hour
    straggler: str = "warn"  # what is done about ranks that are slower than the others: "warn", "exclude", "off"
    straggler_factor: float = 1.2
    planned_change_timeout: float = 0.0  # seconds that a planned change waits for all ranks to save; 0: it does not
    alone: bool = False  # no other node can ever come: nobody could take this one's place, however long it is silent
    network_check: bool = False  # nodes are checked before they are let in
    check_only: bool = False  # and nothing is run on them
    exclude_straggler: bool = False
    slow_node_factor: float = 2.0  # in a check
    node_check_timeout: float = 60.0
    comm_perf_test: bool = False


class Term(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One life of a coordinator. The higher one is the newer; no two are equal.

    >>> Term(2, "b") > Term(1, "c")
    True
    """

    number: Count = 0
    by: Name = ""  # the life of an agent that started it: of one `by`, no two live at the same time


class Ballot(msgspec.Struct, frozen=True, array_like=True):
    """A node's votes among the members of a generation: a coordinator needs more than half of the total."""

    generation: Count
    formed: Count  # the number of the term that it was formed in
    affirmed: Count  # and of the last one that took it over
    total: Count
    votes: Count  # of the node that this is told to

    @property
    def age(self) -> tuple[int, int]:
        """What makes one newer than another."""
        return (self.affirmed, self.generation)


class Successor(msgspec.Struct, frozen=True, array_like=True):
    """A node that may host the coordinator when its host is lost, and where it would listen."""

    node: Name
    name: Name
    addr: Address
    port: Port
    key: Name = ""


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """A generation that failed, and what was done about it."""

    generation: Count
    node: Name
    rank: Count
    at: Time
    cause: Name
    title: Reason
    seen: Reason
    did: Reason
    step: int | None = None
    key: Name = ""  # the same for the same failure
    progressed: bool = False  # the job had got further than ever before


class Ban(msgspec.Struct, frozen=True, array_like=True):
    """A place that is left out for a while, or was."""

    since: float
    until: float
    times: Count
    reason: Reason


class Ledger(msgspec.Struct, frozen=True, array_like=True):
    """The history that decisions about failures are made from: whoever coordinates next has to know it."""

    tried: tuple[Tried, ...] = ()
    bans: dict[Name, Ban] = {}


class Charter(msgspec.Struct, frozen=True, array_like=True, tag="charter"):
    """What a node has to know so that the job outlives its coordinator."""

    run: Name  # unique to one run of the job: what is left of an earlier one is no part of it
    rules: Rules
    ballots: Annotated[tuple[Ballot, ...], msgspec.Meta(max_length=2)] = ()  # the newest first
    successors: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()
    restarts: Count = 0  # that failures had cost when the newest generation was formed
    excluded: dict[Name, Reason] = {}  # places that are not used again, and why
    members: tuple[Name, ...] = ()  # all of the newest generation's, for a successor: it must count them all
    ledger: Ledger | None = None  # for a successor; its times count from when it was told
    before: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()  # of the second ballot's generation

    @property
    def turns(self) -> tuple[Successor, ...]:
        """Who may host the coordinator, one after the other.

        While the generation before has a say, its members are among them: perhaps nobody of the newest has heard of it.
        """
        newest = {successor.node for successor in self.successors}
        return (*self.successors, *(successor for successor in self.before if successor.node not in newest))

    @property
    def known(self) -> tuple[int, int, int]:
        """What a node repeats in its reports, so that the coordinator sees whether it has this one."""
        return (*self.ballots[0].age, len(self.ballots)) if self.ballots else (0, 0, 0)


class State(str, Enum):
    """What a node's workers do, as its agent last saw it."""

    IDLE = "idle"
    RUNNING = "running"
    FINISHED = "finished"  # every worker of the generation exited with 0
    FAILED = "failed"  # at least one did not
    CUT_OFF = "cut off"  # the lease ran out, and the agent ended its workers


class Leaving(str, Enum):
    """Why a node wants out."""

    NO = ""
    DRAIN = "drain"  # SIGTERM: this node goes, the job goes on
    INTERRUPT = "interrupt"  # Ctrl-C: the whole job ends


class Account(msgspec.Struct, frozen=True, array_like=True):
    """What was seen of a worker's end, as far as it is worth a message. What was not seen is left empty."""

    exception: Name = ""  # the type, as Python names it
    said: Annotated[str, msgspec.Meta(max_length=4096)] = ""  # the exception's message
    traceback: Annotated[str, msgspec.Meta(max_length=16384)] = ""
    log: Annotated[str, msgspec.Meta(max_length=4096)] = ""  # the path of its log on its node
    tail: tuple[Reason, ...] = ()  # of that log
    kernel: tuple[Reason, ...] = ()  # what the kernel says
    gpus: tuple[Reason, ...] = ()  # how those of its node were
    ran: float | None = None  # seconds
    step: int | None = None  # the last one


class Cause(msgspec.Struct, frozen=True, array_like=True):
    """What it was, in the words of the catalogue (`outlast.diagnosis`)."""

    name: Name
    title: Reason
    role: Name = "root"
    domain: Name = "user code"
    outlook: Name = "unknown"
    explain: Reason = ""
    advice: Reason = ""
    seen: Reason = ""  # the line that gave it away


class FailoverStrategy(str, Enum):
    """What is done about a failure."""

    NORMAL = "normal"  # the workers are started again where they were
    NODE = "node"  # without this node: a spare takes its place, if there is one
    GLOBAL = "global"  # everything is started anew, also what is kept between restarts
    ABORTION = "abortion"  # nothing can help: the job ends


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """One worker's end, as evidence."""

    node: Name
    host: Name
    rank: Count
    local_rank: Count
    pid: Count
    exit_code: int  # negative: the signal, as subprocess has it
    at: Time  # wall-clock
    message: str
    error_file: str = "<N/A>"
    error: str = ""  # the error file as torch's @record wrote it
    hung: Reason = ""  # where and for how long, if it was ended because it hung
    culprit: bool = False  # the others waited for this one: what became of them is its doing
    account: Account = Account()
    cause: Cause | None = None
    clock: Time = 0.0  # when, on the clock of its agent
    strategy: FailoverStrategy = FailoverStrategy.NORMAL
    decided: Reason = ""  # by what, if not by default
    pending: bool = False  # the user's extension has not answered yet


class Wanted(str, Enum):
    """What a rank may ask of the whole job. (A drain is its agent's own matter.)"""

    STOP = "stop"
    EXCLUDE_NODE = "exclude_node"
    RESTART = "restart"


class Wish(msgspec.Struct, frozen=True, array_like=True):
    """What a rank asked for with `outlast.control`. Repeated in every report, and done once: it names a generation."""

    wanted: Wanted
    generation: Count
    rank: Count
    reason: Reason


class Overdue(msgspec.Struct, frozen=True, array_like=True):
    """Ranks of a node are late. Repeated in its reports for a while, so that whoever coordinates hears of it."""

    number: Count  # grows with every time that some are newly late
    ending: bool  # by a time-out that ends them; else it is a suspicion


class Measures(msgspec.Struct, frozen=True, array_like=True):
    """How long things took at most, on one node or on all: seconds, as `core/hang.py` names them."""

    round: Count  # of calibration: all nodes are asked again for each
    longest: Annotated[dict[Name, Time], msgspec.Meta(max_length=128)] = {}


class Halted(msgspec.Struct, frozen=True, array_like=True):
    """Where the ranks of a node are, before a planned change. Boundaries are numbered within a generation."""

    at: Count  # the boundary at which they are to halt, as far as the node knows; 0: at the next one, until it is named
    able: bool  # all of them come to boundaries
    passed: Count  # the last one that any of them has gone past
    sealed: Count = 0  # all of them have saved at this one, and wait there
    step: Count | None = None  # which was that of this step; None: not all could


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """One node's place in a generation. Its size does not grow with the number of nodes."""

    generation: int
    group_rank: int
    group_world_size: int
    first_rank: int
    world_size: int
    role_rank: int  # of this node's first worker, among the workers of its role
    role_world_size: int
    master_addr: str
    master_port: int
    restart_count: int
    fresh: bool = False  # nothing that is kept between restarts is used


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """The whole truth about a node: sent when it changes, and once per heartbeat."""

    seq: Count
    floor: Count  # no generation up to this one will ever start here again
    generation: Count  # the newest that was started here; 0: none
    state: State
    clear: bool  # no worker process is alive here
    store_port: Port  # reserved here for the next generation's store
    leaving: Leaving = Leaving.NO
    failures: tuple[Failure, ...] = ()
    acked: Count = 0  # the newest of its reports that an `Ack` has come for, from the coordinator that this goes to
    known: tuple[Count, Count, Count] = (0, 0, 0)  # the charter that it has
    wish: Wish | None = None  # of one of its ranks
    measures: Measures = Measures(0)  # the newest that it was asked for, by one of its ranks or by the coordinator
    agreed: Count = 0  # the newest round of calibration that it knows the result of
    overdue: Overdue | None = None
    halted: Halted | None = None  # while a change is planned
    sent: Time = 0.0  # by the clock of the agent
    held: Annotated[tuple[Held, ...], msgspec.Meta(max_length=64)] | None = None  # None: as it said before
    stride: Count = 1  # that this node can keep up with


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """The first message of an agent on every connection."""

    node: Name  # unique to one life of one agent
    name: Name
    nproc: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    role: Name
    addr: Address
    job: Name
    entrypoint: Annotated[str, msgspec.Meta(max_length=4096)]
    nnodes: tuple[int, int]
    report: Report
    infra_rank: Count | None = None
    protocol: int = PROTOCOL
    connection: Count = 0  # grows with every one that this life of the agent makes
    key: Name = ""  # of its place: no two agents that live hold the same one
    port: Port = 0  # where this node would host a coordinator; 0: it cannot
    term: Term = Term()  # the newest that it has obeyed
    charter: Charter | None = None
    assignment: Assignment | None = None  # of the newest generation that was started here
    since: float = 0.0  # when it took its place, by the clock of its machine: of two with the same key, who came later
    keeper: Port = 0  # where its keeper listens; 0: nowhere
    hands: Hands | None = None  # the shards that its ranks have and have done

    @property
    def place(self) -> str:
        """What an agent has in common with those before and after it in the same place."""
        return self.key or self.name


class Seen(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """Where the ranks of a node are: the answer to `Look`."""

    generation: Count
    number: Count
    observations: Annotated[tuple[Observation, ...], msgspec.Meta(max_length=PLACES)]


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """How one rank got on for a while: what a step of it took, and what of that it spent on what. Seconds, on average.

    Those of `core/pace.py`, from two looks at the board.
    """

    rank: Count
    first: int  # the step that it began after
    last: int
    step: Time
    sections: Annotated[dict[Name, Time], msgspec.Meta(max_length=MOST_SECTIONS)] = {}
    busy: Time | None = None  # its main thread ran, or waited for a processor; None: nobody knows
    waited: Name = ""  # the section in which ranks wait for each other, if that is known


class Paces(msgspec.Struct, frozen=True, array_like=True, tag="paces"):
    """How the ranks of a node got on since the last time: once a second at most, and only while they make steps."""

    generation: Count
    paces: Annotated[tuple[Pace, ...], msgspec.Meta(max_length=65536)]


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A person wants something of the job: the only message of a connection that joins nothing."""

    what: Name  # "restart"
    who: Name  # for the log
    job: Name = ""  # empty: whichever is served there


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """What became of it."""

    done: bool
    text: str


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The coordinator takes the node in. The lease: how long workers may run on without an `Ack`."""

    heartbeat: float
    lease: float
    restart_grace: float
    successors: Annotated[tuple[Successor, ...], msgspec.Meta(max_length=64)] = ()  # where else to look for others


class Standing(msgspec.Struct, frozen=True, array_like=True, tag="standing"):
    """A coordinator's first word, before anybody has joined it: who it is, and whether it may act."""

    term: Term
    acting: bool


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """Report `seq` was heard by the coordinator of this term.

    Its receiver promises not to join another one for a while. `leased`: that coordinator may act, its sender is
    still part of the job, and its workers' lease is renewed.
    """

    seq: int
    term: int
    leased: bool = True


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """Start the workers of this generation. Also a leased `Ack` of the report that it answers."""

    assignment: Assignment
    term: int
    charter: Charter
    ack: int = 0
    keeping: Keeping = Keeping()


class Measure(msgspec.Struct, frozen=True, array_like=True, tag="measure"):
    """Say what your workers have measured: a rank somewhere asked for a calibration."""

    round: Count


class Agreed(msgspec.Struct, frozen=True, array_like=True, tag="agreed"):
    """What all ranks have measured together."""

    measures: Measures


class Notice(msgspec.Struct, frozen=True, array_like=True, tag="notice"):
    """For whoever reads this node's log: the coordinator's own may lie on another host."""

    text: Reason


class Look(msgspec.Struct, frozen=True, array_like=True, tag="look"):
    """Say where your ranks are, at once: somewhere in the job one is late."""

    generation: Count
    number: Count  # of the inquiry
    interrupt: bool  # the generation is about to end: ranks may be disturbed to see where they are


class Named(msgspec.Struct, frozen=True, array_like=True, tag="named"):
    """Who makes the job hang, by what was seen of all ranks. Those who are late, and the culprits, are to be ended."""

    generation: Count
    number: Count
    culprits: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_CULPRITS)]
    sentence: Reason


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt"):
    """A change is planned: let your ranks save at this boundary, and wait there for their end."""

    generation: Count
    at: Count = 0  # 0: not named yet; whoever comes to one waits for that
    durable: bool = True  # and have it written to disk


class Stop(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Stop every worker up to this generation, and never start one of them again."""

    generation: int
    term: int
    graceful: bool = False  # the workers get the whole shutdown time-out to end by themselves


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """The job has ended, for this node (`left`) or for all."""

    success: bool
    reason: str
    failures: tuple[Failure, ...] = ()  # the root first
    left: bool = False
    term: int = 0
    tried: tuple[Tried, ...] = ()  # the oldest first
    table: str = ""  # of the node checks, where they decided


class Refuse(msgspec.Struct, frozen=True, array_like=True, tag="refuse"):
    """This agent cannot be part of the job; the reason says what to change."""

    reason: str


FromAgent = Join | Report | Seen | Paces | Findings | Ask | Query
FromCoordinator = (
    Standing
    | Welcome
    | Charter
    | Ack
    | Start
    | Measure
    | Agreed
    | Probe
    | Notice
    | Look
    | Named
    | Stride
    | Halt
    | Stop
    | Over
    | Refuse
    | Answer
    | Told
)
