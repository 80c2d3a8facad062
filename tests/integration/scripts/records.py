"""A worker whose rank 1 raises, with torch's @record on it."""

import os
import signal

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    if os.environ["RANK"] == "1":
        raise RuntimeError("the dog ate the gradients")
    signal.pause()


if __name__ == "__main__":
    main()
