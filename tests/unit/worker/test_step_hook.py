"""Steps of scripts that know nothing of Outlast, told by torch: here by a small one that has the same hook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.board.board import Board
from outlast.board.readings import Reading

OPTIMIZER = """
import torch
before, hooks = [], []
register_optimizer_step_pre_hook = before.append
register_optimizer_step_post_hook = hooks.append

def step():
    for hook in before + hooks:
        hook(None, (), {})
"""
INSTALL = "from outlast.worker import step_hook; step_hook.install()"
TRAIN = "from torch.optim import optimizer; [optimizer.step() for _ in range(3)]"


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """Where a torch of a few lines lies."""
    (tmp_path / "torch" / "optim").mkdir(parents=True)
    compiler = "class compiler:\n    compiling = False\n    is_compiling = staticmethod(lambda: compiler.compiling)\n"
    (tmp_path / "torch" / "__init__.py").write_text(compiler)
    (tmp_path / "torch" / "optim" / "__init__.py").touch()
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)
    return tmp_path


def after(code: str, board: Board, path: Path | None = None, **variables: str) -> Reading:
    env = {**os.environ, "OUTLAST_BOARD": board.address(0), **variables}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return board.read(0)


def test_the_steps_of_optimizers_are_seen_whether_torch_is_imported_later_or_was_before(
    board: Board, torch: Path
) -> None:
    assert after(f"{INSTALL}; {TRAIN}", board, torch).step == 3
    assert after(f"import torch.optim.optimizer; {INSTALL}; {TRAIN}", board, torch).step == 3


def test_the_section_that_optimizers_steps_come_after_is_seen(board: Board, torch: Path) -> None:
    sections = "import outlast; [outlast.section(name).__enter__().__exit__(None, None, None) for name in ('a', 'b')]"
    after(f"{INSTALL}; {sections}; {TRAIN}", board, torch)
    totals = board.totals(0)
    assert totals is not None
    assert totals.waited == "b"


def test_a_script_that_counts_its_own_steps_is_not_contradicted(board: Board, torch: Path) -> None:
    reading = after(f"{INSTALL}; from outlast.worker.session import step; step(70); {TRAIN}", board, torch)
    assert (reading.step, reading.beats) == (70, 4)


def test_steps_that_are_being_compiled_are_left_alone(board: Board, torch: Path) -> None:
    assert after(f"{INSTALL}; import torch; torch.compiler.compiling = True; {TRAIN}", board, torch).beats == 0


def test_it_can_be_turned_off_and_does_nothing_without_a_board(board: Board, torch: Path) -> None:
    seen = f"{INSTALL}; {TRAIN}; import sys; assert 'outlast.board' not in sys.modules; assert not optimizer.hooks"
    after(seen, board, torch, OUTLAST_STEP_HOOK="false")
    after(seen, board, torch, OUTLAST_BOARD="")


def test_a_torch_that_has_no_such_hook_is_imported_all_the_same(board: Board, torch: Path) -> None:
    (torch / "torch" / "optim" / "optimizer.py").write_text("old = True")
    assert after(f"{INSTALL}; from torch.optim.optimizer import old", board, torch).pid is None


def test_nothing_is_imported_before_the_script_that_python_has_not_imported(board: Board) -> None:
    code = (
        "import sys; before = set(sys.modules); from outlast.worker import step_hook; step_hook.install(); "
        "new = {name for name in set(sys.modules) - before if not name.startswith('outlast')}; "
        "assert new <= {'__future__'}, new"
    )
    after(code, board)


def test_torch_itself_tells_of_its_steps(board: Board) -> None:
    code = f"""
{INSTALL}
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""
    assert after(code, board).step == 3
