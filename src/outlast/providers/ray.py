"""Ray: an actor with an agent on each node, made from the job file."""

from __future__ import annotations

import logging
import sys

from outlast.errors import JobFailed
from outlast.events.sentences import sentence
from outlast.jobs.spec import JobSpec
from outlast.providers.provider import JobProvider
from outlast.ray.request import RayRequest, plan_request

FAILED, NO_REQUEUE = 1, 93  # exit codes, as of `outlast run`


class RayProvider(JobProvider[RayRequest]):
    """Runs jobs on a Ray cluster. Planning needs no Ray."""

    def plan(self, spec: JobSpec) -> RayRequest:
        """One placement group and one actor per node, spares included."""
        return plan_request(spec, detached=not spec.ray.wait)

    def submit(self, request: RayRequest) -> int:
        """Start it; stay until its end, unless it is detached."""
        try:
            from outlast.ray.driver import begin
        except ModuleNotFoundError as missing:
            if missing.name != "ray":
                raise
            raise ValueError("Ray is not installed here: pip install 'outlast[ray]'") from None
        logging.basicConfig(level=logging.INFO, format="%(asctime)s outlast %(name)s: %(message)s", datefmt="%H:%M:%S")
        try:
            job = begin(request)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster can be reached ({error}): set ray.address, or use --on=local") from None
        if request.detached:
            print(f"submitted Ray job {job.name}: outlast.ray.attach({job.name!r}) follows it")
            return 0
        try:
            for told in job:
                print(f"event {told.number}: {sentence(told.event)}", flush=True)
            print(f"job succeeded: {job.result().reason}", flush=True)
        except JobFailed as failed:
            print(failed, file=sys.stderr)
            return NO_REQUEUE if failed.final else FAILED
        except KeyboardInterrupt:
            print(job.stop(), file=sys.stderr)
            return FAILED
        return 0
