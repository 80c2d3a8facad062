"""Which checkpoints a script writes and reads: torch.save and torch.load, DCP, and `outlast.Checkpointer`."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from outlast.worker.probe.plan import ProbeFaults
from outlast.worker.probe.recorder import ProbeRecorder
from outlast.worker.probe.user_code import calling_line


class FileProbe:
    """`step`: how many steps this process has made."""

    def __init__(self, recorder: ProbeRecorder, faults: ProbeFaults, step: Callable[[], int]) -> None:
        self._recorder = recorder
        self._faults = faults
        self._step = step

    def install_torch(self, torch: Any) -> None:
        """Watch torch.save and torch.load."""
        save, load = torch.save, torch.load

        def watched_save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
            line, began, path = calling_line(), time.time(), _path(f)
            if path and self._faults.save_delay and self._recorder.ours and not hasattr(f, "write"):
                buffer = io.BytesIO()
                save(obj, buffer, *args, **options)
                _write_slowly(path, buffer.getbuffer(), self._faults.save_delay)
            else:
                save(obj, f, *args, **options)
            self._saved(path, line, began, keys=_keys(obj))

        def watched_load(f: Any, *args: Any, **options: Any) -> Any:
            line, began, error = calling_line(), time.time(), ""
            try:
                return load(f, *args, **options)
            except BaseException as raised:
                error = f"{type(raised).__name__}: {raised}".partition("\n")[0].partition(". ")[0][:120]
                raise
            finally:
                self._recorder.tell("load", path=_path(f), line=line, began=began, error=error, step=self._step())

        torch.save = torch.serialization.save = watched_save
        torch.load = torch.serialization.load = watched_load

    def install_dcp(self, dcp: Any) -> None:
        """Watch torch.distributed.checkpoint.save and load."""
        save, load = dcp.save, dcp.load

        def watched_save(state_dict: Any, *args: Any, **options: Any) -> Any:
            line, began = calling_line(), time.time()
            made = save(state_dict, *args, **options)
            self._saved(_identity(args, options), line, began, keys=_keys(state_dict))
            return made

        def watched_load(state_dict: Any, *args: Any, **options: Any) -> Any:
            line, began = calling_line(), time.time()
            made = load(state_dict, *args, **options)
            path = _identity(args, options)
            self._recorder.tell("load", path=path, line=line, began=began, error="", step=self._step())
            return made

        dcp.save, dcp.load = watched_save, watched_load

    def install_checkpointer(self, module: Any) -> None:
        """Watch `outlast.Checkpointer`."""
        kind = module.Checkpointer
        save, restore = kind.save, kind.restore

        def watched_save(self_: Any, step: int, state: Any, **options: Any) -> Any:
            line, began = calling_line(), time.time()
            made = save(self_, step, state, **options)
            if made:
                self._saved(os.path.realpath(self_._directory), line, began, keys=_keys(state), ours=True)
            return made

        def watched_restore(self_: Any, state: Any, **options: Any) -> Any:
            line, began = calling_line(), time.time()
            found = restore(self_, state, **options)
            if found:
                path = os.path.realpath(self_._directory)
                self._recorder.tell("load", path=path, line=line, began=began, error="", step=self._step())
            return found

        kind.save, kind.restore = watched_save, watched_restore

    def _saved(self, path: str, line: str, began: float, *, keys: list[str], ours: bool = False) -> None:
        if not self._recorder.ours:
            return
        self._recorder.tell("save", path=path, line=line, began=began, keys=keys, ours=ours, step=self._step())
        if path:
            self._faults.saved.append(path)
        if not ours:
            self._faults.in_save(path, self._step())


def _write_slowly(path: str, data: memoryview, delay: float) -> None:
    """As a slow disk does it: half of the file is there for a while."""
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        time.sleep(delay)
        file.write(data[len(data) // 2 :])


def _path(file: Any) -> str:
    name = getattr(file, "name", file)
    return os.path.realpath(name) if isinstance(name, str | os.PathLike) else ""


def _identity(args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    given = options.get("checkpoint_id", args[0] if args else "")
    return os.path.realpath(given) if isinstance(given, str | os.PathLike) and given else ""


def _keys(state: Any) -> list[str]:
    return [str(key)[:60] for key in list(state)[:50]] if isinstance(state, Mapping) else []
