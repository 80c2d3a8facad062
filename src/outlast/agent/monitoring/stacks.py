"""Where the workers of this node are, within a second, whether they cooperate or not.

    stacks = await collect({0: 4711, 1: 4712})

What the kernel says comes first, and costs nothing: a process that is stopped or in uninterruptible sleep is known by
that alone, and nobody waits for it. Then there are two ways to see its Python.

The signal that `worker/dump.py` has prepared for is quick, some hundredths of a second. It interrupts whatever the main
thread waits for: nearly everything takes that well and goes on, but not quite (torch's own store gives up a try to
connect, and tries again). So it is for workers that are given up, and the first choice there: others wait for them.

py-spy, where it is installed (`pip install outlast[stacks]`) and may read the memory of the workers, disturbs nobody.
But it reads the symbols of torch each time, which takes a tenth of a second of a whole core for each worker. It is for
a mere suspicion, and for those who do not answer the signal.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from outlast.agent.processes.spawning import start_bound
from outlast.diagnosis.stack import (
    Child,
    Stack,
    ThreadStack,
    interesting,
    is_user,
    read_faulthandler,
    read_py_spy,
    trim,
)
from outlast.system import proc
from outlast.system.pidfd import exited

# Those of worker/dump.py, which an agent does not import.
DUMP = "memfd:outlast-dump"
SIGNAL = 62

TOOL = "py-spy"
SIGNAL_SHARE = 0.5  # of the timeout; the rest is for the tool
AT_ONCE = 8  # of the tools: more of them would only wait for each other
SETTLED = 0.02  # seconds without a new line: whoever wrote has finished
CUT_OFF = 0.15  # the same, where the end does not look like one
LOOK = 0.004  # seconds between two looks at what a worker writes
BLINK = 0.05  # seconds: uninterruptible sleep that is over by then was a disk at work
STILL = frozenset("TtDZX")  # in these states no process can answer a signal
GONE = frozenset(("", "Z", "X"))
CHILDREN = 16  # whose state is of interest
SOURCE_LENGTH = 160


async def collect(pids: Mapping[int, int], timeout: float = 1.0, *, interrupt: bool = True) -> dict[int, Stack]:
    """Where each worker is, by rank; `pids` are their processes. Takes no longer than the timeout, whatever they do.

    `interrupt`: a worker may be sent a signal, where nothing else helps. Every rank gets a stack, if need be one that
    says why it has no frames.
    """
    began = time.monotonic()
    tool = find_tool()
    places = asyncio.Semaphore(AT_ONCE)

    async def one(pid: int) -> Stack:
        stack = look(pid)
        if stack.state == "D":
            await asyncio.sleep(min(BLINK, timeout / 4))
            stack = look(pid)
        seen = time.monotonic()
        if interrupt and stack.state not in STILL:
            stack = await _by_signal(stack, pid, began + timeout * (SIGNAL_SHARE if tool else 1))
        if tool and not stack.frames and stack.state not in GONE:
            async with places:
                stack = await _by_tool(tool, stack, pid, began + timeout)
        return replace(_with_source(stack), age=time.monotonic() - seen, trouble=_trouble(stack, tool, interrupt))

    found = await asyncio.gather(*map(one, pids.values()))
    return dict(zip(pids, found, strict=True))


def find_tool() -> str:
    """The path of py-spy: beside this Python, else anywhere; empty if there is none."""
    beside = Path(sys.executable).with_name(TOOL)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(TOOL) or ""


def look(pid: int) -> Stack:
    """What the kernel says of a process; nothing here waits for it."""
    state = _state(pid)
    if not state:
        return Stack()
    syscall = _read(pid, "syscall").split()
    wchan = _read(pid, "wchan").strip()
    kernel = _read(pid, "stack").splitlines()
    return Stack(
        state=state,
        wchan="" if wchan == "0" else wchan[:100],
        syscall=int(syscall[0]) if syscall and syscall[0].isdecimal() else None,
        kernel=tuple(line.rpartition("] ")[2].partition("+")[0][:100] for line in kernel[:8]),
        children=_children(pid),
    )


async def _by_tool(tool: str, stack: Stack, pid: int, deadline: float) -> Stack:
    """What py-spy sees. It may not see this process (Yama, a container without SYS_PTRACE): then as before."""
    with os.fdopen(os.memfd_create("outlast-py-spy", os.MFD_CLOEXEC), "rb") as output:
        command = (tool, "dump", "--json", "--nonblocking", "--pid", str(pid))
        try:
            process = start_bound(command, _plain(), stdout=output.fileno(), stderr=subprocess.DEVNULL, pass_fds=())
        except OSError:
            return stack
        try:
            await asyncio.wait_for(exited(process.pid), max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            process.kill()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(exited(process.pid), BLINK)
            return stack
        finally:
            process.kill()
            # Not waited for: where the kernel holds the process that it looks at, it may be held, too.
            process.returncode = process.poll() or 0
        output.seek(0)
        return _seen(stack, read_py_spy(output.read().decode(errors="replace"), pid), "py-spy")


async def _by_signal(stack: Stack, pid: int, deadline: float) -> Stack:
    """What the worker's own signal handler writes down."""
    descriptor = _dump_of(pid)
    if descriptor is None:
        return stack
    with descriptor as file:
        try:
            file.truncate(0)
            os.kill(pid, SIGNAL)
        except OSError:
            return stack
        text, grown_at = "", time.monotonic()
        while (now := time.monotonic()) < deadline:
            file.seek(0)
            newest = file.read().decode(errors="replace")
            if newest != text:
                text, grown_at = newest, now
            # The main thread comes last, and its script last of all. A worker may be held up in the middle of writing.
            whole = text.endswith((" in <module>\n", "  ...\n"))
            if " in " in text and now - grown_at > (SETTLED if whole else CUT_OFF):
                break
            await asyncio.sleep(LOOK)
    return _seen(stack, read_faulthandler(text), "signal")


def _seen(stack: Stack, threads: Sequence[ThreadStack], how: str) -> Stack:
    main = next((thread.frames for thread in threads if thread.main and thread.frames), ())
    return replace(stack, frames=trim(main), others=interesting(threads), how=how) if main else stack


def _dump_of(pid: int) -> IO[bytes] | None:
    """The file in which this process would write its stack; None if the signal would do anything else."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read(pid, "status"), re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> (SIGNAL - 1) & 1:
        return None
    with suppress(OSError):
        for path, name in proc.open_files(pid):
            if DUMP in name:
                return open(path, "r+b", buffering=0)
    return None


def _with_source(stack: Stack) -> Stack:
    """The same, with the text of the line that matters: the innermost of the user's own."""
    at = next((number for number, frame in enumerate(stack.frames) if is_user(frame)), None)
    if at is None:
        return stack
    frame = stack.frames[at]
    linecache.checkcache(frame.file)
    source = linecache.getline(frame.file, frame.line).strip()[:SOURCE_LENGTH]
    return replace(stack, frames=(*stack.frames[:at], replace(frame, source=source), *stack.frames[at + 1 :]))


def _trouble(stack: Stack, tool: str, interrupt: bool) -> str:
    if stack.frames:
        return ""
    if stack.state in GONE:
        return "the process has ended"
    spied = "py-spy may not read its memory" if tool else "py-spy is not installed (pip install outlast[stacks])"
    if stack.state in STILL or not interrupt:
        return spied
    return f"{spied}, and it does not answer the signal"


def _state(pid: int) -> str:
    with suppress(OSError):
        stat = proc.stat(pid)
        return stat.state if stat is not None else ""
    return ""


def _children(pid: int) -> tuple[Child, ...]:
    pids: list[int] = []
    with suppress(OSError):
        pids = proc.children(pid)
    named = ((child, _read(child, "comm").strip(), _state(child)) for child in sorted(pids)[:CHILDREN])
    return tuple(Child(child, name, state) for child, name, state in named if state)


def _read(pid: int, what: str) -> str:
    with suppress(OSError):
        return proc.read(pid, what).decode(errors="replace")
    return ""


def _plain() -> dict[str, str]:
    """An environment for a tool: without the job's token."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
