"""Steps of scripts that know nothing of Outlast: torch tells when an optimizer has made one.

Loaded before the script, so nothing is imported here that Python has not imported by itself; the rest follows when
torch is there.
"""

from __future__ import annotations

import os
import sys

from outlast.worker import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

OPTIMIZER = "torch.optim.optimizer"
BOARD = "OUTLAST_BOARD"  # board.VARIABLE, which is not loaded yet
SWITCH = "OUTLAST_STEP_HOOK"


def install() -> None:
    """Count the steps of all optimizers once the script imports torch, if there is a board and it is not turned off."""
    if os.environ.get(BOARD) and os.environ.get(SWITCH, "true").lower() != "false":
        imports.after(OPTIMIZER, _hook)


def _hook(optimizer: ModuleType) -> None:
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return  # a torch that does not tell

    from outlast.worker.session import session

    torch, stepped = sys.modules["torch"], session.optimizer_stepped

    def after_step(_optimizer: object, _args: object, _options: object) -> None:
        # A step that is compiled is not counted: looking at the clock would break the graph, or forbid it.
        # Looked for now: torch is still being imported when the hook is made, and not every torch has it.
        if not (hasattr(torch, "compiler") and torch.compiler.is_compiling()):
            stepped()

    register(after_step)
    before = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    if before is not None:
        steps = session.optimizer_steps

        def before_step(_optimizer: object, _args: object, _options: object) -> None:
            if not (hasattr(torch, "compiler") and torch.compiler.is_compiling()):
                steps()

        before(before_step)
