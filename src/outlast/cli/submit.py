"""`outlast submit`: runs what a job file describes, here or on a platform."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from outlast.cli.flags import Parser
from outlast.jobs.loading import BadJobFile, read
from outlast.jobs.spec import PLATFORMS
from outlast.providers.local import LocalProvider, free_port
from outlast.providers.provider import JobProvider
from outlast.settings.values import nearest


def main(argv: Sequence[str]) -> int:
    """Submit a job file; with --dry-run, print exactly what would be submitted."""
    parser = Parser(prog="outlast submit", description="Runs the job that a file describes.")
    parser.add_argument("file", help="The job file, as job.yaml.")
    parser.add_argument("--on", default=None, help=f"Where: {', '.join(PLATFORMS)}. By default what the file says.")
    parser.add_argument(
        "--dry-run", "--dry_run", action="store_true", help="Print what would be submitted, and submit nothing."
    )
    args = parser.parse(argv)
    try:
        if args.on is not None and args.on not in PLATFORMS:
            hint = nearest(args.on, PLATFORMS, otherwise=f"; there are: {', '.join(PLATFORMS)}")
            raise ValueError(f"--on={args.on}: no such platform{hint}")
        spec = read(args.file)
        provider = _provider(args.on or spec.on)
        request = provider.plan(spec)
        if args.dry_run:
            print(request.text())
            return 0
        return provider.submit(request)
    except BadJobFile as bad:
        for mistake in bad.mistakes:
            print(f"outlast submit: error: {mistake}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"outlast submit: error: {error}", file=sys.stderr)
        return 1


def _provider(platform: str) -> JobProvider[Any]:
    if platform == "local":
        return LocalProvider(free_port())
    raise ValueError(f"--on={platform} is not in this version yet; there is: local")
