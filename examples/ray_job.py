"""A job on Ray that tells how it gets on: `python ray_job.py [train.py args…]`, as a driver or by `ray job submit`."""

import sys
from pathlib import Path

import outlast
import outlast.ray
from outlast.events.sentences import sentence

job = outlast.ray.start(
    Path(__file__).with_name("train.py"),
    sys.argv[1:],
    nnodes=(2, 4),
    resources_per_node={"CPU": 1},
    max_restarts=3,
)
for told in job:
    print(sentence(told.event))
try:
    print("done:", job.result().reason)
except outlast.JobFailed as failed:
    sys.exit(f"cause: {failed.verdict.cause.title if failed.verdict else failed.reason}")
