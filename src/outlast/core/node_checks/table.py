"""What a check found, as a table for people: those first who did not pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outlast.core.node_checks.checks import UNITS, Fitness, Result, Row
from outlast.events.phrases import count, listed

ROWS = 64  # of nodes; more are counted
FEW, WHY = 3, 200  # nodes that are told of in one line, and characters of what is said of each
_ORDER = [Fitness.FAULTY, Fitness.LOST, Fitness.ASIDE, Fitness.SLOW, Fitness.GOOD]


def table(result: Result) -> str:
    """The table of a check, one line per node.

    >>> print(table(Result({"a": Row("node-0", Fitness.GOOD, figures={"compute": 88.0})}, 1, ())))
    node    verdict  compute GFLOP/s
    node-0  good     88.0
    1 node checked in 1 round: 1 good
    """
    rows = sorted(result.rows.values(), key=lambda row: (_ORDER.index(row.standing), row.node))
    columns = [name for name in UNITS if any(name in row.figures for row in rows)]
    said = any(_remark(row) for row in rows[:ROWS])
    lines = [["node", "verdict", *(f"{name} {UNITS[name]}" for name in columns), *["remarks"] * said]]
    for row in rows[:ROWS]:
        figures = [_figure(row.figures[name]) if name in row.figures else "-" for name in columns]
        lines.append([row.node, row.standing.value, *figures, *[_remark(row)] * said])
    text = _aligned(lines)
    more = [f"and {len(rows) - ROWS} more nodes"] if len(rows) > ROWS else []
    sizes = [line for row in rows[:ROWS] if (line := _sizes(row))]
    return "\n".join([*text, *more, *sizes, *(f"note: {each}" for each in result.warnings), summary(result)])


def summary(result: Result) -> str:
    """In one line, how many passed.

    >>> summary(Result({"a": Row("a", Fitness.GOOD), "b": Row("b", Fitness.FAULTY)}, 2, ()))
    '2 nodes checked in 2 rounds: 1 faulty (b), 1 good'
    """
    parts = []
    for standing in _ORDER:
        names = sorted(row.node for row in result.rows.values() if row.standing is standing)
        if names:
            named = f" ({listed(names)})" if standing is not Fitness.GOOD else ""
            parts.append(f"{len(names)} {standing.value}{named}")
    return f"{count(len(result.rows), 'node')} checked in {count(result.rounds, 'round')}: {', '.join(parts)}"


def notice(result: Result, used: Collection[str], where: str) -> str:
    """In one line, who did not pass and why, for those who do not see the table; nothing if all did.

    `used`: those that may take part all the same. `where`: the node in whose log the table is, if that is known.

    >>> faulty = Row("node-2", Fitness.FAULTY, "its check was killed by signal 9")
    >>> notice(Result({"c": faulty, "a": Row("node-0", Fitness.GOOD)}, 2, ()), used={"a"}, where="node-0")
    'excluded: node-2, faulty: its check was killed by signal 9 (the table is in the log of node node-0)'
    """
    worse = {node: row for node, row in result.rows.items() if row.standing is not Fitness.GOOD}
    out = [row for node, row in worse.items() if node not in used]
    stay = [row for node, row in worse.items() if node in used]
    said = [f"{what}: {_each(rows)}" for what, rows in (("excluded", out), ("used all the same", stay)) if rows]
    log = f"in the log of node {where}" if where else "in the coordinator's log"
    return f"{'; '.join(said)} (the table is {log})" if said else ""


def _each(rows: list[Row]) -> str:
    named = [f"{row.node}, {row.standing.value}: {row.why[:WHY]}" for row in rows[:FEW]]
    return "; ".join([*named, *([f"and {len(rows) - FEW} more"] if len(rows) > FEW else [])])


def _remark(row: Row) -> str:
    return "; ".join([*([row.why] if row.why else []), *row.warnings])


def _sizes(row: Row) -> str:
    """What --comm-perf-test has measured, beside the columns."""
    others = [f"{name} {_figure(value)}" for name, value in row.figures.items() if name not in UNITS]
    return f"{row.node}, GB/s: {', '.join(others)}" if others else ""


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(lines: list[list[str]]) -> Iterable[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
