"""Two ranks that meet, of which rank 1 asks for rank 0's store before it is there: `warm_early.py DIRECTORY`.

Rank 0 comes to meet it only when rank 1 has been refused, and has slept over it.
"""

import os
import sys
import time
from pathlib import Path

warm = "torch" in sys.modules

import torch.distributed as dist  # noqa: E402

generation, rank = os.environ["OUTLAST_GENERATION"], int(os.environ["RANK"])
refused = Path(sys.argv[1], f"refused-{generation}")
sleep = time.sleep
pauses = 0


def doze(seconds: float) -> None:
    global pauses
    pauses += 1
    refused.touch()
    sleep(seconds)


if rank == 0:
    deadline = time.monotonic() + 150
    while not refused.exists() and time.monotonic() < deadline:
        sleep(0.01)
else:
    time.sleep = doze
dist.init_process_group("gloo")
time.sleep = sleep
dist.barrier()
os.write(1, f"rank {rank} of generation {generation}: warm {warm} pauses {pauses} pid {os.getpid()}\n".encode())
dist.barrier()
if generation == "1":
    sleep(1000)
dist.destroy_process_group()
