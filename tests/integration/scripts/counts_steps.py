"""Makes 60 numbered steps; in its first life it fails after step 30, and goes on after step 20."""

import os
import sys
import time

import outlast

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
for step in range(1 if first else 21, 61):
    time.sleep(0.02)
    outlast.step(step)
    if first and step == 30:
        sys.exit(3)
