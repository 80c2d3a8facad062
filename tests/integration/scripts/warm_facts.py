"""What a script sees of itself and its process, without torch: `warm_facts.py` prints it as JSON."""

found = sorted(globals())

import builtins  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402

PR_GET_PDEATHSIG = 2


class Own:
    """A class of `__main__`, to be pickled."""


STACKS = signal.SIGRTMAX - 2  # the one signal that Outlast handles in a worker: see worker/dump.py


def name_of(thing: object) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def handler_of(number: int) -> object:
    handler = signal.getsignal(number)
    return name_of(handler) if callable(handler) else handler


def main_module() -> dict[str, object]:
    spec = __spec__
    return {
        "names": found,
        "name": __name__,
        "file": __file__,
        "package": __package__,
        "doc": __doc__,
        "spec": spec and [spec.name, spec.origin, spec.parent, spec.cached],
        "loader": [type(__loader__).__name__, getattr(__loader__, "path", None), getattr(__loader__, "name", None)],
        "builtins": __builtins__ is builtins,
        "is_main": sys.modules["__main__"].__dict__ is globals(),
        "source": inspect.getsource(Own),
        "pickled": pickle.loads(pickle.dumps(Own())).__class__ is Own,  # noqa: S301
        "frames": [frame.filename for frame in inspect.stack()],
    }


def interpreter() -> dict[str, object]:
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "warnoptions": sys.warnoptions,
        "filters": [str(each) for each in warnings.filters],
        "xoptions": sys._xoptions,
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "meta_path": [name for name in map(name_of, sys.meta_path) if name != "_Watch"],
        "site": [name for name in ("sitecustomize", "usercustomize") if name in sys.modules],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "logging": [logging.root.level, [str(handler) for handler in logging.root.handlers]],
        "locale": locale.setlocale(locale.LC_ALL),
        "threads": [thread.name for thread in threading.enumerate()],
        "main_thread": threading.current_thread() is threading.main_thread(),
        "native_id": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
    }


def process() -> dict[str, object]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "cwd": str(Path.cwd()),
        "cmdline": Path("/proc/self/cmdline").read_bytes().decode(),
        "comm": Path("/proc/self/comm").read_text(),
        "signals": {number: handler_of(number) for number in sorted(signal.valid_signals() - {STACKS})},
        "masks": {
            name: int(status[name], 16) & ~(1 << STACKS - 1)
            for name in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
        },
        "wakeup": signal.set_wakeup_fd(-1),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "umask": status["Umask"],
        "threads": status["Threads"],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {
            name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")
        },
        "affinity": sorted(os.sched_getaffinity(0)),
        "oom": Path("/proc/self/oom_score_adj").read_text(),
        "cpu_is_its_own": time.process_time() < 60,
    }


def streams() -> dict[str, object]:
    def describe(stream: object) -> list[object]:
        names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through", "newlines", "closed")
        asked = [getattr(stream, name)() for name in ("isatty", "seekable", "readable", "writable", "fileno")]
        return [repr(stream), repr(stream.buffer), asked, *(getattr(stream, name) for name in names)]  # type: ignore[attr-defined]

    inherited = subprocess.run(["ls", "/proc/self/fd"], stdout=subprocess.PIPE, close_fds=False, check=True)
    with open(os.devnull) as file:
        first = file.fileno()
    return {
        "streams": [describe(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "inherited by children": inherited.stdout.decode().split(),
        "next descriptor": first,
    }


def place() -> dict[str, object]:
    """Where it is among the processes: what a launcher decides, not an interpreter."""
    libc, death = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(death))
    return {
        "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "parent": os.getppid(),
        "death_signal": death.value,
        "environment": dict(os.environ),
        "children's environment": os.fsdecode(subprocess.check_output(["env", "-0"])),
        "shown environment": os.fsdecode(Path("/proc/self/environ").read_bytes()),
    }


def facts() -> dict[str, dict[str, object]]:
    return {
        "main": main_module(),
        "interpreter": interpreter(),
        "process": process(),
        "streams": streams(),
        "place": place(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
