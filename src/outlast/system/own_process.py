"""How processes of our own are started: none looks for modules in the current directory, where anybody may put some.

`python -m` and `python -c` both search it first, before the standard library; `-P` came with Python 3.11 only.
"""

from __future__ import annotations

import sys


def program(target: str) -> str:
    """What `python -c` has to run for a function of ours that takes no arguments; `sys.argv[1:]` is what follows it.

    >>> program("outlast.cli:main")
    'import sys; sys.path[:] = filter(None, sys.path); from outlast.cli import main; sys.exit(main())'
    """
    module, _, function = target.partition(":")
    safe = "import sys; sys.path[:] = filter(None, sys.path)"
    return f"{safe}; from {module} import {function}; sys.exit({function}())"


def command(target: str, *arguments: str) -> list[str]:
    """The command line of such a process."""
    return [sys.executable, "-c", program(target), *arguments]
