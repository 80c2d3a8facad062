"""Figures as people read them."""

from __future__ import annotations

from datetime import datetime, timezone


def duration(seconds: float) -> str:
    """
    >>> duration(0.0421), duration(7.25), duration(754), duration(93_784)
    ('42 ms', '7.2 s', '12 min 34 s', '26 h 3 min')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def percent(share: float) -> str:
    """
    >>> percent(0.98765), percent(1.0)
    ('98.77 %', '100.00 %')
    """
    return f"{100 * share:.2f} %"


def moment(time: float) -> str:
    """A time of the wall clock, in UTC: a report is read elsewhere."""
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def money(amount: float | None) -> str:
    return "" if amount is None else f"{amount:,.2f}"
