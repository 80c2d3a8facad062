"""`outlast config`: the effective settings, and where each of them came from."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from outlast.cli.flags import Parser, add_settings, given_settings
from outlast.settings.loading import Loaded, load
from outlast.settings.values import spelled


def main(argv: Sequence[str]) -> int:
    """Prints the settings that `outlast run` would use with these flags, here and now."""
    parser = Parser(prog="outlast config", description="Prints the settings and where each came from.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    add_settings(parser)
    args = parser.parse(argv)
    try:
        loaded = load(given_settings(args), os.environ, args.ft_cfg_path)
    except ValueError as error:
        print(f"outlast config: error: {error}", file=sys.stderr)
        return 2
    print(_json(loaded) if args.json else _table(loaded))
    return 0


def _json(loaded: Loaded) -> str:
    rows = {name: {"value": value, "origin": loaded.origins[name]} for name, value in loaded.settings.shown().items()}
    return msgspec.json.format(msgspec.json.encode(rows)).decode()


def _table(loaded: Loaded) -> str:
    rows = [("setting", "value", "from")]
    rows += [(name, spelled(value) or '""', loaded.origins[name]) for name, value in loaded.settings.shown().items()]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)
