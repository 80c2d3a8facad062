"""A worker that makes a file of its rank's name: `touches.py DIRECTORY [INIT_METHOD]`.

With an INIT_METHOD it meets the other ranks first, and the file says whether torch knows that a launcher started it.
"""

import os
import sys
from pathlib import Path

place = Path(sys.argv[1]) / os.environ["RANK"]
launched = ""
if sys.argv[2:]:
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=world)
    dist.barrier()
    dist.destroy_process_group()
    launched = str(dist.is_torchelastic_launched())
place.write_text(launched or os.environ.get("OF_THE_PARENT", ""))
