"""Runs the script that it is given, and says before who it is: for examples, which do not say it."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    os.write(1, f"rank {os.environ['RANK']} runs the example: pid {os.getpid()}\n".encode())  # in one piece
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
