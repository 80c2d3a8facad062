"""Random schedules for `cluster_model`: one seed, one story."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from cluster_model import NODES, Cluster, OperatorModel, Reconcile, job_object

from outlast.k8s.execution import carry_out
from outlast.k8s.observed import JobOutcome
from outlast.k8s.reconcile import reconcile

STEPS = 250
FATES = ("fine", "fine", "fine", "fine", "fine", "fine", "reply lost", "request lost", "error")


class Story:
    """A cluster with one job, one operator or two, and everything that can go wrong."""

    def __init__(
        self,
        seed: int,
        *,
        operators: int = 1,
        decide: Reconcile = reconcile,
        execute: Any = carry_out,
    ) -> None:
        self.rng = random.Random(seed)
        self.decide, self.execute = decide, execute
        self.cluster = Cluster(self.rng)
        least = self.rng.randint(1, 3)
        most = self.rng.randint(least, 4)
        self.least, self.most = least, most
        self.cluster.start(job_object(self.rng.randint(least, most), least, most))
        self.operators = [self._operator() for _ in range(operators)]
        self.cluster.alone = operators == 1

    def _operator(self) -> OperatorModel:
        return OperatorModel(self.cluster, self.decide, self.execute)

    def run(self) -> list[str]:
        """What was violated, if anything."""
        for _ in range(STEPS):
            self._step()
            if self.cluster.violations:
                return self.cluster.violations
        self._calm_down()
        return self.cluster.violations

    def _step(self) -> None:
        cluster, rng = self.cluster, self.rng
        cluster.now += rng.choice((0.0, 0.1, 1.0, 3.0, 15.0))
        operator = rng.choice(self.operators)
        if rng.random() < 0.55:
            self._operator_step(operator)
        else:
            rng.choices(*zip(*self._happenings(), strict=True))[0]()
        cluster.check()

    def _operator_step(self, operator: OperatorModel) -> None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.01:
            self.operators[self.operators.index(operator)] = self._operator()
        elif operator.execution is not None and chance < 0.6:
            operator.go_on(lambda: rng.choice(FATES))
        elif chance < 0.3:
            operator.deliver("job", rng.randint(1, 5))
        elif chance < 0.55:
            operator.deliver("pod", rng.randint(1, 8))
        elif chance < 0.65:
            operator.word = self.cluster.word() if rng.random() < 0.9 else None
        else:
            operator.begin()

    def _happenings(self) -> list[tuple[Callable[[], None], float]]:
        return [
            (self._start_pod, 5),
            (self._join, 8),
            (self.cluster.kubelets, 3),
            (self._end_container, 1.2),
            (self._delete_pod, 0.8),
            (self._force_delete, 0.3),
            (self._cut_or_heal, 1),
            (self._scale_or_suspend, 0.5),
            (self._quota, 0.2),
            (self._exclude, 0.2),
            (self._succeed, 0.03),
        ]

    def _start_pod(self) -> None:
        pending = [name for name, pod in self.cluster.pods.items() if "nodeName" not in pod["spec"]]
        if pending:
            self.cluster.run(self.rng.choice(pending))

    def _join(self) -> None:
        waiting = [uid for uid, each in self.cluster.containers.items() if each.running and not each.joined]
        if waiting:
            self.cluster.join(self.rng.choice(waiting))

    def _running(self) -> list[str]:
        return [uid for uid, each in self.cluster.containers.items() if each.running]

    def _end_container(self) -> None:
        if running := self._running():
            code, reason = self.rng.choice(((1, "Error"), (1, "Error"), (14, "Error"), (137, "OOMKilled")))
            self.cluster.end(self.rng.choice(running), code, reason)

    def _delete_pod(self) -> None:
        if self.cluster.pods:
            self.cluster.delete(self.rng.choice(sorted(self.cluster.pods)))

    def _force_delete(self) -> None:
        if self.cluster.pods:
            name = self.rng.choice(sorted(self.cluster.pods))
            self.cluster.remove(name)

    def _cut_or_heal(self) -> None:
        cut = self.cluster.cut
        if cut and self.rng.random() < 0.5:
            cut.discard(self.rng.choice(sorted(cut)))
        elif len(cut) < 3:
            self.cluster.cut_off(self.rng.choice([node for node in NODES if node not in cut]))

    def _scale_or_suspend(self) -> None:
        job = self.cluster.job
        if job is None:
            return
        if self.rng.random() < 0.5:
            job["spec"]["suspend"] = not job["spec"].get("suspend", False)
        job["spec"]["replicaSpecs"]["worker"]["replicas"] = self.rng.randint(self.least, self.most)
        job["metadata"]["generation"] += 1
        self.cluster.touch("job", "job", job)
        # What is wanted has changed: an operator that has not seen it may still delete what is wanted again.
        self.cluster.asked = False

    def _quota(self) -> None:
        self.cluster.quota_until = self.cluster.now + 60

    def _exclude(self) -> None:
        if self.cluster.agents:
            name = self.rng.choice(sorted(self.cluster.agents))
            self.cluster.excluded[name] = "straggler"

    def _succeed(self) -> None:
        if len(self.cluster.agents) >= self.least:
            self.cluster.outcome = JobOutcome(True, "all ranks have ended")

    def _calm_down(self) -> None:
        """Nothing goes wrong any more: the job must get all that it may have, and then be left in peace."""
        cluster = self.cluster
        cluster.cut.clear()
        cluster.quota_until = 0.0
        if cluster.job is not None and cluster.job["spec"].get("suspend"):
            cluster.job["spec"]["suspend"] = False
            cluster.touch("job", "job", cluster.job)
        quiet, writes = 0, cluster.writes
        for _ in range(100):
            for operator in self.operators:
                self._whole_pass(operator)
            cluster.kubelets()
            for name in sorted(cluster.pods):
                if name in cluster.pods and "nodeName" not in cluster.pods[name]["spec"]:
                    cluster.run(name)
            for uid, container in cluster.containers.items():
                if container.running and not container.joined:
                    cluster.join(uid)
            cluster.check()
            quiet = quiet + 1 if cluster.writes == writes else 0
            if quiet > 12 or cluster.violations:  # longer than any back-off
                break
            writes = cluster.writes
            cluster.now += 30
        self._check_calm()

    def _whole_pass(self, operator: OperatorModel) -> None:
        while operator.request is not None:
            operator.go_on(lambda: "fine")
        for kind in ("job", "pod"):
            operator.deliver(kind, 10**6)
        word = self.cluster.word()
        operator.word = None if word is None else type(word)(**{**_fields(word), "acting": True})
        operator.begin()
        while operator.request is not None:
            operator.go_on(lambda: "fine")

    def _check_calm(self) -> None:
        cluster = self.cluster
        job = cluster.job
        assert job is not None
        if job["status"]["phase"] in ("Succeeded", "Failed"):
            alive = [each.pod for each in cluster.containers.values() if each.running]
            if alive:
                cluster.violations.append(f"the job is over, and {alive} run on")
        else:
            wanted = list(range(job["spec"]["replicaSpecs"]["worker"]["replicas"]))
            # A pod that the coordinator excludes is kept, unused, if no more nodes may be excluded.
            alive = [each for each in cluster.containers.values() if each.running]
            trains = sorted(each.slot for each in alive if each.joined or each.pod in cluster.excluded)
            if trains != wanted:
                cluster.violations.append(f"slots {trains} train in the end, wanted were {wanted}: {job['status']}")
        before = cluster.writes
        for operator in self.operators:
            self._whole_pass(operator)
        if cluster.writes != before:
            cluster.violations.append("nothing has changed, and the operator writes on")


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
