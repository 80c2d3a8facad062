"""`python -u -m outlast.worker.cold DESCRIPTOR python -u script.py args…`: a worker that nobody forked.

It runs the script as the zygote's children do, and tells the agent what there is to import.
"""

from __future__ import annotations

import sys

from outlast.worker import lessons, script


def main() -> None:
    descriptor, command = int(sys.argv[1]), sys.argv[2:]
    lessons.report_later(descriptor)
    script.become(command)


if __name__ == "__main__":
    main()
