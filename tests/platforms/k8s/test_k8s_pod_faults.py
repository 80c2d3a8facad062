"""What ends pods on real kubelets, and what the operator makes of it. The pods run a line of shell."""

from __future__ import annotations

from real_jobs import Cluster

from control_plane import until

FIRST_LIFE = "case $POD_NAME in *-0) {} ;; *) sleep 1000 ;; esac"


def test_exit_codes_of_faulty_nodes_mark_the_node_and_the_replacement_goes_elsewhere(cluster: Cluster) -> None:
    codes = (14, 128, 201, 202)
    jobs = [cluster.small(f"code-{code}", FIRST_LIFE.format(f"exit {code}")) for code in codes]
    for code, job in zip(codes, jobs, strict=True):
        until(lambda job=job: job.pod(0, 1).get("spec", {}).get("nodeName"), f"the replacement after {code}")
        status, bad = job.status(), job.pod(0)["spec"]["nodeName"]
        (excluded,) = status["excludedNodes"]
        assert (excluded["name"], excluded["cause"]) == (bad, f"exit code {code}")
        assert status["lastFault"]["action"] == "ExcludeNode"
        assert job.pod(0, 1)["spec"]["nodeName"] != bad
        assert not status["slots"]["0"].get("failures")


def test_out_of_memory_gets_twice_the_memory(cluster: Cluster) -> None:
    limits = {"resources": {"limits": {"memory": "20Mi"}}}
    job = cluster.small("hungry", FIRST_LIFE.format("tail /dev/zero"), container=limits)
    until(lambda: job.pod(0, 1), "the replacement")
    ended = job.pod(0)["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["reason"] == "OOMKilled"
    assert job.pod(0, 1)["spec"]["containers"][0]["resources"]["limits"]["memory"] == "40Mi"
    status = job.status()
    assert (status["slots"]["0"]["memory"], status["lastFault"]["action"]) == ("40Mi", "GrowMemory")
    assert status["lastFault"]["cause"] == "out of memory (limit 20Mi)"
    assert not status["slots"]["0"].get("failures")


def test_an_image_that_does_not_exist_and_a_crash_loop_are_told_in_conditions(cluster: Cluster) -> None:
    absent = cluster.small("absent", "true", container={"image": "localhost/absent:1"})
    crashing = cluster.small("crashing", "exit 7", worker={"restartCount": 1})
    until(lambda: "ErrImageNeverPull" in absent.condition("Degraded"), "the image in the condition")
    crashing.until_phase("Failed")
    assert crashing.condition("Failed") == (
        "slot 0 has failed 2 times, restartCount allows 1; the last time: exit code 7"
    )
    assert absent.status()["phase"] == "Pending"


def test_an_exceeded_quota_is_a_condition_and_is_healed_when_there_is_room(cluster: Cluster) -> None:
    quota = (
        '{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}'
    )
    cluster.kubectl("apply", "-f", "-", given=quota)
    try:
        until(lambda: cluster.kubectl("get", "quota", "one", "-o", "jsonpath={.status.hard}"), "the quota")
        job = cluster.small("many", "sleep 1000", replicas=2, elasticPolicy={"minReplicas": 1})
        until(lambda: "exceeded quota: one" in job.condition("QuotaExceeded"), "the condition")
        until(lambda: job.status()["nodes"].startswith("1/"), "the pod that there is room for")
    finally:
        cluster.kubectl("delete", "quota", "one")
    until(lambda: job.status()["nodes"].startswith("2/"), "both pods")
    assert not job.condition("QuotaExceeded")
