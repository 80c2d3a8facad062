"""A driver for tests: `ray_driver.py OPTIONS`, in JSON. Prints each event; a line on its input asks the job."""

import json
import logging
import sys
import threading
import time

import ray

import outlast
import outlast.ray

logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
options = json.loads(sys.argv[1])
ray.init(address=options.pop("address"), log_to_driver=True)
name = options.pop("attach", "")
nodes = options.pop("nnodes", 1)
job = (
    outlast.ray.attach(name)
    if name
    else outlast.ray.start(
        options.pop("script"),
        options.pop("args", ()),
        nnodes=tuple(nodes) if isinstance(nodes, list) else nodes,
        **options,
    )
)
print(f"driver: job {job.name}", flush=True)


def ask() -> None:
    for line in sys.stdin:
        what, *words = line.split()
        if what == "step":
            while (pace := job.progress()) is None:
                time.sleep(0.5)
            print(f"driver: step {pace.last}", flush=True)
        else:
            print("driver: answer:", getattr(job, what)(*words), flush=True)


threading.Thread(target=ask, daemon=True).start()
for told in job:
    print(f"event {told.number} {type(told.event).__name__}: {told.event}", flush=True)
try:
    print(f"driver: success: {job.result().reason}", flush=True)
except outlast.JobFailed as failed:
    cause = failed.verdict.cause.name if failed.verdict is not None else "none"
    print(f"driver: JobFailed: {failed.reason}; cause {cause}; final {failed.final}", flush=True)
