"""Outlast keeps PyTorch training alive. This file is the public API and nothing else.

>>> import outlast.run
>>> outlast.run.main(["--nproc-per-node=2", "train.py"])  # doctest: +SKIP
"""

from outlast.errors import JobFailed

__all__ = ["JobFailed"]
