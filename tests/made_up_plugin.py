"""The made-up processor of the checks' tests, installed as a plug-in is."""

from __future__ import annotations

import os
from pathlib import Path

SOURCE = Path(__file__).parent / "integration" / "checks" / "made_up.py"


def install(place: Path) -> dict[str, str]:
    """Install the plug-in into a directory. Returns the environment in which it is found."""
    (place / "made_up.py").write_text(SOURCE.read_text())
    info = place / "made_up-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: made-up\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[outlast.accelerators]\nmade-up = made_up:MadeUp\n")
    path = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": f"{place}{os.pathsep}{path}" if path else str(place)}
