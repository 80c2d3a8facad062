"""One seed's world, drawn before the first event: the job's rules, the network, the workers, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from outlast.core.events import Rules

FAULTS = ("crash", "power", "cut", "reset", "drain", "interrupt", "join")
KILL_SHARE = 0.1  # of the node time-out: the longest that a SIGKILL takes to clear a node
CLOCK_DRIFT = 0.01


@dataclass
class Schedule:
    """Times are in virtual seconds; probabilities are per message, per group of workers, or per fault."""

    rules: Rules
    arrivals: list[float]  # of the first agents
    faults: list[tuple[float, str]]
    quiet: float  # from here on nothing goes wrong any more
    work: float  # how long all members must run together to finish; infinite: they never do
    spread: float  # how far apart they finish
    shutdown: float  # the whole time-out of a graceful stop
    backoff: float
    latency: float
    slow: float  # the probability of a message that takes up to one and a half node time-outs
    reorder: bool
    loss: float
    double: float
    failing: float  # the probability that a group of workers fails by itself
    cascade: float  # the probability that a group fails because another one of its generation is gone
    comeback: float  # the probability that the host of an ended agent starts another


def draw(random: Random) -> Schedule:
    """The world of one seed."""
    rules = _rules(random)
    timeout = rules.node_timeout
    quiet = timeout * random.uniform(2, 12)
    possible = [f for f in FAULTS if random.random() < 0.6 and (f != "interrupt" or random.random() < 0.15)]
    kinds = [random.choice(possible) for _ in range(random.randint(0, 9))] if possible else []
    unruly = random.random() < 0.5  # else the network is TCP's: in order, once, sometimes late
    return Schedule(
        rules=rules,
        arrivals=[random.uniform(0, 2) * timeout for _ in range(random.randint(1, 7))],
        faults=sorted((random.uniform(0, quiet), kind) for kind in kinds),
        quiet=quiet,
        work=float("inf") if random.random() < 0.5 else timeout * random.uniform(0.5, 8),
        spread=timeout * random.choice((0.05, 0.5, 4)),
        shutdown=timeout * random.uniform(0.2, 4),
        backoff=timeout * random.uniform(0.02, 0.6),
        latency=timeout * random.choice((0.001, 0.01, 0.1)),
        slow=random.choice((0.0, 0.0, 0.02, 0.1)),
        reorder=unruly and random.random() < 0.7,
        loss=random.choice((0.0, 0.02, 0.1)) if unruly else 0.0,
        double=random.choice((0.0, 0.05, 0.2)) if unruly else 0.0,
        failing=random.choice((0.0, 0.0, 0.1, 0.5)),
        cascade=random.choice((0.0, 0.5, 1.0)),
        comeback=random.choice((0.2, 0.7, 1.0)),
    )


def _rules(random: Random) -> Rules:
    unit = random.choice((1, 1, 2))
    most = random.randint(unit, 6)
    least = random.randint(1, min(4, most // unit * unit))
    timeout = random.choice((0.5, 1.0, 3.0))
    return Rules(
        job="job",
        entrypoint="train.py",
        min_nodes=least,
        max_nodes=most,
        node_unit=unit,
        max_restarts=random.randint(0, 3),
        infra_ranks=random.random() < 0.5,
        last_call=timeout * random.choice((0.0, 0.3, 1.0)),
        pend_timeout=timeout * random.uniform(3, 12),
        empty_timeout=timeout * random.uniform(0.5, 4),
        node_timeout=timeout,
        restart_grace=timeout * random.choice((0.0, 0.1, 0.6)),
    )
