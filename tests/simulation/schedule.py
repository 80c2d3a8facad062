"""One seed's world, drawn before the first event: the job's rules, the network, the workers, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from outlast.protocol.rules import Rules
from outlast.settings.settings import JobSettings

FAULTS = (
    "crash", "power", "cut", "split", "flap", "reset", "drain", "interrupt", "join",
    "kill", "kill", "amnesia", "pause agent", "pause coordinator",
)  # fmt: skip
HARMLESS_TO_TIES = ("crash", "power", "drain", "join", "kill", "amnesia")  # what is no partition, nor looks like one
KILL_SHARE = 0.1  # of the node timeout: the longest that a SIGKILL takes to clear a node
ORPHAN_SHARE = 0.08  # and the longest that workers outlive their agent
CLOCK_DRIFT = 0.01


@dataclass
class Schedule:
    """Times are in virtual seconds; probabilities are per message, per group of workers, or per fault."""

    rules: Rules
    kind: str  # "any", "tie" (of two nodes one may go on alone), or "kills" (of the coordinator, and nothing else)
    arrivals: list[float]  # of the first agents
    endpoints: int  # how many of the first hosts every agent knows
    faults: list[tuple[float, str]]
    quiet: float  # from here on nothing goes wrong any more
    work: float  # how long all members must run together to finish; infinite: they never do
    spread: float  # how far apart they finish
    shutdown: float  # the whole timeout of a graceful stop
    backoff: float
    revive: float  # the longest that an agent takes to start a coordinator
    latency: float
    slow: float  # the probability of a message that takes up to one and a half node timeouts
    reorder: bool
    loss: float
    double: float
    failing: float  # the probability that a group of workers fails by itself
    cascade: float  # the probability that a group fails because another one of its generation is gone
    comeback: float  # the probability that the host of an ended agent starts another


def draw(random: Random, settings: Random | None = None) -> Schedule:
    """The world of one seed. With `settings`: the job has those that people run, or any that they may."""
    kind = random.choices(("any", "tie", "kills"), (8, 1, 1))[0]
    if kind == "kills":
        return _only_kills(random, settings)
    rules = _rules(random, tie=kind == "tie")
    if settings is not None:
        rules = _set(settings, rules, kind)
    timeout = rules.node_timeout
    quiet = timeout * random.uniform(2, 14)
    faults = FAULTS if kind == "any" else HARMLESS_TO_TIES
    possible = [f for f in faults if random.random() < 0.5 and (f != "interrupt" or random.random() < 0.15)]
    kinds = [random.choice(possible) for _ in range(random.randint(0, 9))] if possible else []
    unruly = kind == "any" and random.random() < 0.4  # else the network is TCP's: in order, once, sometimes late
    few = kind == "tie" or random.random() < 0.3
    return Schedule(
        rules=rules,
        kind=kind,
        arrivals=[random.uniform(0, 2) * timeout for _ in range(2 if few else random.randint(1, 7))],
        endpoints=random.choice((1, 1, 3)),
        faults=sorted((random.uniform(0, quiet), kind) for kind in kinds),
        quiet=quiet,
        work=float("inf") if random.random() < 0.6 else timeout * random.uniform(0.5, 8),
        spread=timeout * random.choice((0.05, 0.5, 4)),
        shutdown=timeout * random.uniform(0.2, 4),
        backoff=timeout * random.uniform(0.02, 0.6),
        revive=timeout * random.choice((0.05, 0.3, 2)),
        latency=timeout * random.choice((0.001, 0.01, 0.05)),
        slow=random.choice((0.0, 0.0, 0.02, 0.1)) if kind == "any" else 0.0,
        reorder=unruly and random.random() < 0.7,
        loss=random.choice((0.0, 0.02, 0.1)) if unruly else 0.0,
        double=random.choice((0.0, 0.05, 0.2)) if unruly else 0.0,
        failing=random.choice((0.0, 0.0, 0.1, 0.5)),
        cascade=random.choice((0.0, 0.5, 1.0)),
        comeback=random.choice((0.2, 0.7, 1.0)),
    )


def _only_kills(random: Random, settings: Random | None) -> Schedule:
    """The coordinator is killed again and again, and comes back soon: the job does not notice."""
    nodes = random.randint(2, 6)
    timeout = random.choice((0.5, 1.0, 3.0))
    rules = _rules(random, tie=False, timeout=timeout, nodes=(random.randint(1, nodes), nodes), unit=1)
    if settings is not None:
        rules = _set(settings, rules, "kills")
        timeout = rules.node_timeout
    begin = rules.last_call + 3 * timeout
    quiet = begin + timeout * random.uniform(2, 10)
    kills = [(random.uniform(begin, quiet), random.choice(("kill", "kill", "amnesia"))) for _ in range(8)]
    return Schedule(
        rules=rules,
        kind="kills",
        arrivals=[random.uniform(0, 0.1) * timeout for _ in range(nodes)],
        endpoints=1,
        faults=sorted(kills),
        quiet=quiet,
        work=float("inf") if random.random() < 0.6 else 6 * timeout + rules.last_call,
        spread=timeout * random.choice((0.05, 0.5, 2)),
        shutdown=timeout,
        backoff=0.03 * timeout,
        revive=0.1 * timeout,
        latency=timeout * random.choice((0.001, 0.005)),
        slow=0.0,
        reorder=False,
        loss=0.0,
        double=0.0,
        failing=0.0,
        cascade=1.0,
        comeback=0.0,
    )


def _rules(
    random: Random, *, tie: bool, timeout: float = 0.0, nodes: tuple[int, int] | None = None, unit: int = 0
) -> Rules:
    unit = unit or random.choice((1, 1, 2))
    most = random.randint(unit, 6)
    least = random.randint(1, min(4, most // unit * unit))
    timeout = timeout or random.choice((0.5, 1.0, 3.0))
    if tie:
        unit, least, most = 1, 1, 2
    if nodes is not None:
        least, most = nodes
    restarts = random.randint(0, 3)
    return Rules(
        job="job",
        entrypoint="train.py",
        min_nodes=least,
        max_nodes=most,
        node_unit=unit,
        max_restarts=restarts,
        use_infra_group_rank=random.random() < 0.5,
        last_call=timeout * random.choice((0.0, 0.3, 1.0)),
        pend_timeout=timeout * random.uniform(3, 12),
        empty_timeout=timeout * random.uniform(0.5, 4),
        node_timeout=timeout,
        restart_grace=timeout * random.choice((0.0, 0.1, 0.6)),
        tie_break="survivor" if tie else "off",
        failover=restarts == 3,
        crash_loop=0,
        exclude_for=timeout,
        eviction_limit=2,
        planned_change_timeout=0.0,
    )


def _set(random: Random, rules: Rules, kind: str) -> Rules:
    """The same job with default settings, or, now and then, with any others."""
    asked = {
        name: getattr(rules, name) for name in Rules.__struct_fields__ if name not in JobSettings.__struct_fields__
    }
    node_unit, tie_break = rules.node_unit, rules.tie_break
    calm = kind == "kills"
    if random.random() < 0.7:
        return Rules(**asked, node_unit=node_unit, tie_break=tie_break)
    timeout = 10 ** random.uniform(-1, 1.5)
    return Rules(
        **asked,
        node_unit=node_unit,
        tie_break=tie_break,
        use_infra_group_rank=random.random() < 0.5,
        last_call=timeout * (random.choice((0.3, 1.0, 3.0)) if calm else random.choice((0.0, 0.3, 1.0, 3.0))),
        pend_timeout=timeout * random.uniform(3, 30),
        empty_timeout=timeout * random.uniform(0.5, 8),
        node_timeout=timeout,
        restart_grace=timeout * random.choice((0.0, 0.01, 0.1, 0.6)),
        failover=random.random() < 0.7,
        crash_loop=random.choice((0, 2, 3, 10)),
        exclude_for=timeout * random.choice((1, 5, 50)),
        eviction_limit=random.randint(0, 3),
        straggler="warn" if calm else random.choice(("warn", "exclude", "off")),
        straggler_factor=random.uniform(1.05, 2.0),
        planned_change_timeout=timeout * random.choice((0.0, 0.3, 2.0, 6.0)),
        network_check=not calm and random.random() < 0.3,
        exclude_straggler=random.random() < 0.5,
        slow_node_factor=random.uniform(1.1, 3.0),
        node_check_timeout=max(1.0, timeout),
        comm_perf_test=random.random() < 0.5,
    )
