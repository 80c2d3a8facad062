"""Who leads, of several operators: by a Lease, as client-go's leader election does it.

The lease keeps operators from doing each other's work. It does not keep them safe: a lease is no fence. Two that act at
once do no lasting harm, because names are deterministic and statuses are written by version.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.k8s.execution import ApiRequest
from outlast.k8s.observed import Raw
from outlast.k8s.quantities import stamp

LEASE_SECONDS = 15
RENEW_EVERY = 2.0
GIVE_UP_AFTER = 10.0  # seconds without a renewal, well before others may take the lease
NAME = "outlast-operator"


class LeaseView(msgspec.Struct, frozen=True):
    """The lease as it was seen, and since when it has been so by the clock of whoever looks (clocks differ)."""

    holder: str
    renewed: str
    since: float
    seconds: int = LEASE_SECONDS


def view_of(lease: Raw, before: LeaseView | None, now: float) -> LeaseView:
    """What a lease says; a renewal that has not changed is as old as when it was first seen."""
    spec = lease.get("spec", {})
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if before is not None and (before.holder, before.renewed) == (holder, renewed):
        return before
    return LeaseView(holder, renewed, now, spec.get("leaseDurationSeconds") or LEASE_SECONDS)


def may_take(lease: LeaseView, me: str, now: float) -> bool:
    """Whether it is mine, nobody's, or of somebody who has not renewed it for its time.

    >>> may_take(LeaseView("other", "t", 100.0), "me", 110.0), may_take(LeaseView("other", "t", 100.0), "me", 116.0)
    (False, True)
    """
    return lease.holder in ("", me) or now - lease.since > lease.seconds


def path_of(namespace: str, name: str = "") -> str:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return f"{path}/{name}" if name else path


def creation(namespace: str, me: str, now: float) -> ApiRequest:
    """The first lease."""
    meta = {"name": NAME, "namespace": namespace}
    return ApiRequest(method="POST", path=path_of(namespace), body=_lease(meta, me, now, {}))


def renewal(lease: Raw, me: str, now: float) -> ApiRequest:
    """The lease, mine from now on; refused if somebody else was faster."""
    meta = {key: lease["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
    body = _lease(meta, me, now, lease.get("spec", {}))
    return ApiRequest(method="PUT", path=path_of(meta["namespace"], meta["name"]), body=body)


def release(lease: Raw, now: float) -> ApiRequest:
    """Nobody's, so that the next one need not wait."""
    return renewal(lease, "", now)


def _lease(meta: dict[str, Any], holder: str, now: float, before: Raw) -> dict[str, Any]:
    moment = f"{stamp(now)[:-1]}.{int(now % 1 * 1e6):06d}Z"
    changed = before.get("holderIdentity") != holder
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": moment,
        "acquireTime": moment if changed else before.get("acquireTime", moment),
        "leaseTransitions": (before.get("leaseTransitions") or 0) + bool(changed and holder),
    }
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
