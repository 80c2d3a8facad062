"""What the progress line says. Pure."""

from __future__ import annotations

from outlast.events.phrases import count
from outlast.observe.status import pace
from outlast.protocol.views import JobView

SEPARATOR = " | "


def progress_text(view: JobView, goodput: float | None, width: int) -> str:
    """One line of at most so many characters: the most important parts first, as many as fit."""
    parts = [f"generation {view.generation}" if view.generation else "no generation yet"]
    if view.phase != "running":
        parts.append(view.phase)
    elif view.progress is not None:
        parts += [f"step {view.progress.last:,}", pace(view.progress.step)]
    if goodput is not None:
        parts.append(f"goodput {100 * goodput:.1f} %")
    if view.phase == "running" and view.members < view.wanted:
        parts.append(f"{count(view.members, 'node')} of {view.wanted}")
    if view.restarts:
        parts.append(f"restart {view.restarts} of {view.allowed}")
    text = "outlast: " + parts[0]
    for part in parts[1:]:
        if len(text) + len(SEPARATOR) + len(part) > width:
            break
        text += SEPARATOR + part
    return text[:width]
