"""The rank that whoever started this node gave it."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLES = ("SLURM_PROCID", "GROUP_RANK")  # the first one that is set counts


def infra_rank(environ: Mapping[str, str]) -> int | None:
    """This node's rank as the infrastructure has it, or None.

    >>> infra_rank({"GROUP_RANK": "3"}), infra_rank({"SLURM_PROCID": "1", "GROUP_RANK": "3"}), infra_rank({})
    (3, 1, None)
    """
    for name in VARIABLES:
        value = environ.get(name, "")
        if value.isdecimal() and len(value) < 10:
            return int(value)
        if value:
            raise ValueError(f"{name}={value!r} is no rank: unset it, or pass --ft-use-infra-group-rank=false")
    return None
