"""What the job was asked to be: the same for its whole life."""

from __future__ import annotations

from msgspec.structs import asdict

from outlast.settings.settings import JobSettings


class Rules(JobSettings, frozen=True, kw_only=True):
    """What the job was asked to be, whoever coordinates it: its settings, with their defaults, and its command line.

    >>> Rules(job="j", entrypoint="train.py", min_nodes=1, max_nodes=2).node_timeout
    3.0
    """

    job: str
    entrypoint: str
    min_nodes: int
    max_nodes: int
    max_restarts: int = 0
    alone: bool = False  # no other node can ever come: nobody could take this one's place, however long it is silent
    check_only: bool = False  # nodes are checked, and nothing is run on them
    chaos: str = ""  # the digest of the token by which faults may be asked for; empty: by nobody

    @classmethod
    def of(
        cls,
        settings: JobSettings,
        *,
        job: str,
        entrypoint: str,
        nodes: tuple[int, int],
        max_restarts: int,
        alone: bool,
        check_only: bool,
        chaos: str = "",
    ) -> Rules:
        """The rules of a job with these settings."""
        wanted = {name: value for name, value in asdict(settings).items() if name in JobSettings.__struct_fields__}
        if alone:
            wanted["empty_timeout"] = 0.0  # nobody else could come
        if check_only:
            wanted["network_check"] = True
        return cls(
            job=job,
            entrypoint=entrypoint,
            min_nodes=nodes[0],
            max_nodes=nodes[1],
            max_restarts=max_restarts,
            alone=alone,
            check_only=check_only,
            chaos=chaos,
            **wanted,
        )
