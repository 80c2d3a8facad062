"""Outlast keeps PyTorch training alive. This file is the public API and nothing else.

>>> import outlast.run
>>> outlast.run.main(["--nproc-per-node=2", "train.py"])  # doctest: +SKIP

Names are loaded when they are asked for: this file is also loaded before a training script begins.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.errors import JobFailed

__all__ = ["JobFailed"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from outlast import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
