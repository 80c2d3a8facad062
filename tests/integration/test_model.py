"""The model of the succession, at its smallest bounds: it holds, and a rule less breaks it (`models/README.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import Process

CHECK = Path(__file__).parents[2] / "models" / "check"


@pytest.mark.thorough
def test_the_model_holds_and_its_mutants_break() -> None:
    check = Process([str(CHECK), "--quick"])
    assert check.wait(300) == 0, check.output
    assert sum(" holds " in line for line in check.lines) == 1, check.output
    assert sum("breaks, as it must" in line for line in check.lines) == 2, check.output
