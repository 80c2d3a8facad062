"""A worker that writes down what it finds: `describe.py DIRECTORY ARGUMENT…` leaves DIRECTORY/<rank>.json."""

import json
import os
import sys
from pathlib import Path

found = {
    "environ": dict(os.environ),
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "path": sys.path[0],
    "cwd": str(Path.cwd()),
    "unbuffered": sys.stdout.write_through,
}
(Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
