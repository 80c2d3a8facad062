"""What a setting's text may be: ports, timeouts, signals, yes and no."""

from __future__ import annotations

import signal
from collections.abc import Iterable

ENV_PREFIX = "OUTLAST_"
# Bounded, so that no clock, selector or lock has to be asked what it makes of infinity.
MOST_SECONDS = 1e9
MOST_GROWTH = 4  # times the memory that was asked for, where nothing else is said

# Whatever a script does about them, they end nobody by themselves.
NOT_ENDING = frozenset(
    {
        signal.SIGCHLD,
        signal.SIGCONT,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
    }
)


def spelled(value: object) -> str:
    """A value as a flag, a variable or YAML would spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def ports(text: str) -> range:
    """The ports that `store_ports` allows; none said, none in it."""
    if not text:
        return range(0)
    low, _, high = text.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal()) or text.endswith("-"):
        raise ValueError(f"must be ports as 29600-29700, not {text!r}")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"must be ports from 1 to 65535, the lower one first, not {text!r}")
    if first == last:
        raise ValueError(f"must be two ports or more, for each generation has another than the last, not {text!r}")
    return range(first, last + 1)


def section_timeouts(text: str) -> dict[str, float]:
    """The timeouts that `rank_section_timeouts` gives, by section.

    >>> section_timeouts("step:30, checkpoint:600")
    {'step': 30.0, 'checkpoint': 600.0}
    """
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, number = part.rpartition(":")
        name = name.strip()
        try:
            seconds = float(number)
        except ValueError:
            seconds = 0.0
        if not name or not 0 < seconds <= MOST_SECONDS:
            raise ValueError(f"must be seconds by section, as step:30,checkpoint:600, not {part!r}")
        if name in found:
            raise ValueError(f"gives section {name!r} two timeouts")
        found[name] = seconds
    return found


def termination_signal(text: str) -> signal.Signals:
    """The signal of this name.

    >>> termination_signal("term").name
    'SIGTERM'
    """
    name = text.strip().upper()
    found = signal.Signals.__members__.get(name if name.startswith("SIG") else f"SIG{name}")
    if found is None or found in NOT_ENDING:
        raise ValueError(f"must be a signal that can end a process, as SIGTERM or SIGKILL, not {text!r}")
    return found


def memory_bytes(text: str) -> int:
    """An amount of memory; empty: 0. Raises ValueError with the rest of a line.

    >>> memory_bytes("4GiB"), memory_bytes("")
    (4294967296, 0)
    """
    number, unit = text[:-3], text[-3:]
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    if not text:
        return 0
    if unit not in units or not number.isdecimal() or not 0 < int(number) < 10**9:
        raise ValueError(f"must be an amount such as 4GiB or 500MiB, not {text!r}")
    return int(number) * units[unit]


def truth(text: str) -> bool | None:
    """What a word says about a switch; None if it says nothing."""
    word = text.strip().lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def nearest(name: str, valid: Iterable[str], *, otherwise: str = "") -> str:
    """The end of an error line about an unknown name: the nearest valid one, if any is near."""
    # What all names of a kind begin with would make each of them look near.
    from difflib import get_close_matches  # for mistakes alone, and slow to load

    prefix = next((each for each in ("--ft-", ENV_PREFIX) if name.startswith(each)), "")
    by_rest = {each[len(prefix) :].lower(): each for each in valid if each.startswith(prefix)}
    found = get_close_matches(name[len(prefix) :].lower(), by_rest, n=1)
    return f"; did you mean {by_rest[found[0]]}?" if found else otherwise


def web_address(text: str) -> str:
    """Raises ValueError with the rest of a line that names the setting: nothing of the URL, which may hold a secret.

    >>> web_address("https://hooks.slack.com/services/T/B/x")[:8]
    'https://'
    """
    scheme, separator, rest = text.partition("://")
    if text and not (separator and scheme in ("http", "https") and rest.strip("/") and not set(text) & set(" \t\r\n")):
        raise ValueError("must be a URL, as https://hooks.slack.com/services/…")
    return text
