"""The faults that a rehearsal asks for, each done once: by this rank, at its step, in the life of the job it is for."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from outlast.worker.probe.recorder import ProbeRecorder

PLAN = "plan.json"  # a list of {"name", "what", "rank", "step"}
DAMAGED = 64  # bytes
IN_SAVE = "kill-in-save"


class ProbeFaults:
    """What is still to be done here. `step` is a step of this process: the count begins anew with each life."""

    def __init__(self, recorder: ProbeRecorder) -> None:
        self._recorder = recorder
        self._place = recorder.directory
        path = self._place / PLAN
        plan = json.loads(path.read_text()) if path.exists() else {}
        self._faults: list[dict[str, Any]] = plan.get("faults", [])
        self.save_delay = float(plan.get("save_delay", 0.0))  # seconds that every save takes longer
        self.saved: list[str] = []  # files and directories, the newest last

    def after_step(self, number: int) -> None:
        """A step has been made: whatever is due now, happens."""
        fault = self._next()
        if fault is not None and fault["what"] != IN_SAVE and number == fault["step"] and self._claim(fault):
            getattr(self, "_" + fault["what"].replace("-", "_"))()

    def in_save(self, path: str, number: int) -> None:
        """A file has been written: half of it, if the process is to die in between."""
        fault = self._next()
        if fault is not None and fault["what"] == IN_SAVE and number >= fault["step"] and self._claim(fault):
            if path:
                os.truncate(path, Path(path).stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def _next(self) -> dict[str, Any] | None:
        """The first that has not been done, if it is for this rank."""
        for fault in self._faults:
            if not self._marker(fault).exists():
                return fault if fault["rank"] == self._recorder.rank else None
        return None

    def _claim(self, fault: dict[str, Any]) -> bool:
        if not self._recorder.ours:
            return False
        self._marker(fault).touch()
        self._recorder.tell("fault", name=fault["name"], what=fault["what"], step=fault["step"])
        return True

    def _marker(self, fault: dict[str, Any]) -> Path:
        return self._place / f"done-{fault['name']}"

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _lose_node(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)  # the agent; its workers die with it
        time.sleep(60)

    def _preempt(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)  # training goes on until the agent says otherwise

    def _hang(self) -> None:
        while True:
            time.sleep(60)

    def _damage(self) -> None:
        """Spoil the newest checkpoint that this rank has written, and die."""
        target = _largest(self.saved[-1]) if self.saved else None
        if target is not None:
            with target.open("r+b") as file:
                file.seek(target.stat().st_size // 2)
                file.write(b"\xa5" * DAMAGED)
        self._recorder.tell("damaged", path=str(target or ""))
        self._kill()


def _largest(path: str) -> Path | None:
    """The file itself, or the largest in a directory."""
    top = Path(path)
    files = [top] if top.is_file() else [each for each in top.rglob("*") if each.is_file()] if top.is_dir() else []
    return max(files, key=lambda file: file.stat().st_size, default=None)
