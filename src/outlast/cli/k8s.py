"""`outlast k8s`: jobs on Kubernetes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from outlast.k8s import crd, rendering
from outlast.k8s.applying import apply
from outlast.k8s.client import connect
from outlast.k8s.conversion import convert
from outlast.k8s.manifests import installation
from outlast.k8s.operator import Operator
from outlast.k8s.plan import CreatePod, EnsureBound, JobObservation, Plan
from outlast.k8s.reading import observe
from outlast.k8s.reconcile import reconcile
from outlast.k8s.resource import API_VERSION, KIND
from outlast.k8s.words import ObserverWords
from outlast.log import configure

SERVICE_IP = "10.96.0.1"  # stands for an address that only a cluster can give


def main(argv: Sequence[str]) -> int:
    """Run one of its commands."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.command(args)
    except (ValueError, OSError) as error:
        print(f"outlast k8s: error: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="outlast k8s", description="Jobs on Kubernetes (docs/kubernetes.md).")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    manifests = commands.add_parser("manifests", help="print what installs the operator, for kubectl apply -f -")
    manifests.add_argument("--crd", action="store_true", help="the resource alone")
    _installing(manifests)
    manifests.set_defaults(command=_manifests)

    install = commands.add_parser("install", help="install the operator, or bring it up to date")
    _installing(install)
    _reaching(install)
    install.add_argument("--dry-run", action="store_true", help="the server checks everything, and keeps nothing")
    install.set_defaults(command=_install)

    submit = commands.add_parser("submit", help="submit ElasticJobs, or bring them up to date")
    submit.add_argument("file", help="YAML file; -: standard input")
    submit.add_argument("--namespace", default="", help="of jobs that name none; default: the context's")
    _reaching(submit)
    submit.add_argument("--dry-run", action="store_true", help="the server checks everything, and keeps nothing")
    submit.set_defaults(command=_submit)

    operator = commands.add_parser("operator", help="run the operator, in a pod or anywhere else")
    operator.add_argument("--namespace", default="", help="whose jobs to run; default: the context's, or the pod's")
    operator.add_argument("--all-namespaces", action="store_true", help="run the jobs of all namespaces")
    operator.add_argument("--nodes", action="store_true", help="watch nodes; needed for the actions Taint and Cordon")
    _reaching(operator)
    operator.set_defaults(command=_operator)

    render = commands.add_parser("render", help="print what an ElasticJob becomes, and create nothing")
    render.add_argument("file", help="YAML file; -: standard input")
    render.set_defaults(command=_render)

    converting = commands.add_parser("convert", help="make ElasticJobs of DLRover's ElasticJobs and of PyTorchJobs")
    converting.add_argument("file", help="YAML file; -: standard input")
    converting.set_defaults(command=_convert)
    return parser


def _installing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--namespace", default="default", help="whose jobs the operator runs, and where it runs")
    parser.add_argument("--image", default="outlast-operator:latest", help="an image with outlast[kubernetes]")
    parser.add_argument("--nodes", action="store_true", help="with the right to taint and cordon nodes")


def _reaching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", default="", help="default: KUBECONFIG, the pod's account, ~/.kube/config")
    parser.add_argument("--context", default="", help="of the kubeconfig; default: its current one")


def _install(args: argparse.Namespace) -> int:
    asyncio.run(_apply(args, installation(args.namespace, args.image, nodes=args.nodes)))
    return 0


def _submit(args: argparse.Namespace) -> int:
    jobs = _documents(args.file)
    for job in jobs:
        _planned(args.file, job)
    asyncio.run(_apply(args, jobs))
    return 0


async def _apply(args: argparse.Namespace, manifests: Sequence[dict[str, Any]]) -> None:
    async with connect(args.kubeconfig, args.context) as client:
        for each in manifests:
            if each["kind"] == KIND:
                each["metadata"].setdefault("namespace", args.namespace or client.namespace)
        async for line in apply(client, manifests, dry_run=args.dry_run):
            print(line)


def _manifests(args: argparse.Namespace) -> int:
    _print([crd.manifest()] if args.crd else installation(args.namespace, args.image, nodes=args.nodes))
    return 0


def _render(args: argparse.Namespace) -> int:
    for job in _documents(args.file):
        seen, plan = _planned(args.file, job)
        assert seen.spec is not None
        orders = [action.order for action in plan.actions if isinstance(action, CreatePod)]
        pods = [rendering.pod(seen.job, seen.spec, order, SERVICE_IP) for order in orders]
        bounds = [
            rendering.bound(seen.job, seen.spec, action.kind, action.minimum, action.kind.versions[0])
            for action in plan.actions
            if isinstance(action, EnsureBound)
        ]
        _print([rendering.secret(seen.job, "TOKEN"), rendering.service(seen.job), *bounds, *pods])
    return 0


def _planned(file: str, job: dict[str, Any]) -> tuple[JobObservation, Plan]:
    """What the operator would make of a job. Raises ValueError if it would not accept it."""
    if (job.get("apiVersion"), job.get("kind")) != (API_VERSION, KIND):
        raise ValueError(f"{file}: no {KIND} of {API_VERSION}, but {job.get('kind')} {job.get('apiVersion')}")
    meta = {"namespace": "default", "uid": "UID", **job.get("metadata", {})}
    if "name" not in meta:
        raise ValueError(f"{file}: metadata.name is missing; give the job a name")
    service = {"spec": {"clusterIP": SERVICE_IP}}
    seen = observe({**job, "metadata": meta}, [], service=service, has_secret=True)
    plan = reconcile(seen, now=0.0)
    accepted = plan.status.condition("Accepted")
    if seen.spec is None or accepted is None or accepted.status != "True":
        raise ValueError(f"{file}: {accepted.message if accepted else 'cannot be read'}")
    return seen, plan


def _convert(args: argparse.Namespace) -> int:
    for given in _documents(args.file):
        try:
            conversion = convert(given)
        except ValueError as error:
            raise ValueError(f"{args.file}: {error}") from None
        for note in dict.fromkeys(conversion.notes):
            print(f"outlast k8s convert: {given['metadata'].get('name', '?')}: {note}", file=sys.stderr)
        _print([conversion.job])
    return 0


def _operator(args: argparse.Namespace) -> int:
    configure("info", "operator")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_operate(args))
    return 0


async def _operate(args: argparse.Namespace) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    async with connect(args.kubeconfig, args.context) as client:
        home = args.namespace or client.namespace
        words = ObserverWords(lambda job: operator.touch((job.namespace, job.name)), time.time)
        operator = Operator(
            client,
            namespace="" if args.all_namespaces else home,
            home=home,
            identity=f"{socket.gethostname()}_{os.getpid()}",
            with_nodes=args.nodes,
            words=words,
        )
        try:
            await operator.run()
        finally:
            await words.close()


def _documents(file: str) -> list[dict[str, Any]]:
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    try:
        found = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {' '.join(str(error).split())}") from None
    if not found or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{file} holds no Kubernetes object")
    return found


class PlainDumper(yaml.SafeDumper):
    """Writes what is used twice out twice: anchors are hard to read."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _print(objects: Iterable[dict[str, Any]]) -> None:
    print(yaml.dump_all(objects, Dumper=PlainDumper, sort_keys=False, width=120, explicit_start=True), end="")
