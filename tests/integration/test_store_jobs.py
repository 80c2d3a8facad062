"""Checkpoints in an object store under the launcher, with real processes: the keeper is the one who writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import free_port, job, node
from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.storage import Url
from processes import Process, python
from stores import Proxy, unavailable

TRAIN = Path(__file__).parent / "checkpoints" / "train.py"
LONG = 120.0  # torch is imported, on machines with little to spare


def finished(*processes: Process) -> dict[int, str]:
    """The digests of the states that a training went through, by step."""
    codes = [each.wait(LONG) for each in processes]
    output = "".join(each.output for each in processes)
    assert set(codes) == {0}, output
    return {int(step): word for step, word in re.findall(r"(?:restored|step) (\d+) (\w{12})\b", output)}


@pytest.mark.thorough
def test_a_job_goes_on_from_a_store_whoever_wrote_it(s3: Url, proxy: Proxy) -> None:
    """A worker without a launcher, one node whose worker is killed, and two nodes; with a store that fails at times."""
    for pattern in ("GET .*list-type.*job", "PUT .*job/step.*distcp", "PUT .*job.*shard-1", "PUT .*job.*manifest.json"):
        proxy.fault(pattern, unavailable, times=2)
    truth = finished(Process([python(), TRAIN, s3 / "truth", "--steps=7", "--durable=7"]))
    assert [each.step for each in disk.found(s3 / "truth")] == [7]
    directory = s3 / "job"
    flags = ("--nproc-per-node=2", "--ft-snapshot-linger=1", "--max-restarts=1")
    one = job(*flags, script=TRAIN, args=[directory, "--kind=ddp", "--steps=4", "--kill-at=3"])
    one.wait_for(r"restored 3 \w+", LONG)
    assert finished(one) == {step: truth[step] for step in (1, 2, 3, 4)}
    assert [(each.step, disk.verify(each.path)) for each in disk.found(directory)] == [(3, [])]
    assert proxy.spent
    flags = ("--nnodes=2", "--nproc-per-node=1", "--ft-use-infra-group-rank=false", "--ft-snapshot-linger=1")
    args, port = [directory, "--kind=fsdp", "--steps=7", "--durable=7"], free_port()
    two = [node(name, port, *flags, script=TRAIN, args=args) for name in "ab"]
    assert finished(*two) == {step: truth[step] for step in (3, 4, 5, 6, 7)}
    newest = disk.found(directory)[0]
    assert (newest.step, disk.verify(newest.path)) == (7, [])
    assert disk.read_manifest(newest.path).save.world == 2
