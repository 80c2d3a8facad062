"""`python -m outlast.worker.run_path script args…`: run a script as `--run-path` does, its errors recorded.

The error file has the format of torch's `@record`, written without torch: a script that does not import it
should not have to wait for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Run the script `argv[0]` with the arguments that follow it."""
    if not argv:
        raise SystemExit("usage: python -m outlast.worker.run_path SCRIPT [ARGUMENT…]")
    faulthandler.enable(all_threads=True)
    sys.argv = list(argv)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except Exception as error:
        _record(error)
        raise


def _record(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    data = {
        "message": {
            "message": f"{type(error).__name__}: {error}",
            "extraInfo": {
                "py_callstack": traceback.format_exc(),
                "timestamp": str(int(time.time())),
            },
        }
    }
    try:
        with open(path, "w") as file:
            json.dump(data, file)
    except OSError as problem:
        # The script's own error is the news; it must not be hidden behind this one.
        print(f"outlast: cannot write the error file {path}: {problem.strerror}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
