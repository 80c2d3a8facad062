"""How well the catalogue knows log lines that it was not written for: precision and recall, by signature.

    python benchmarks/catalogue.py [--of dev|held-out|all] [--misses]

The lines (`data/log_lines.yaml`) come from public issue threads. Those of a third of the threads are held out: nobody
looked at what the catalogue makes of them while patterns were changed.
"""

from __future__ import annotations

import argparse
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import yaml

from outlast.diagnosis.cause import find
from outlast.diagnosis.evidence import Evidence
from outlast.signatures import catalogue

LINES = Path(__file__).parent / "data" / "log_lines.yaml"


def is_held_out(source: str) -> bool:
    """Whether a thread is of the third that is held out: by its name, so that nobody chose."""
    return zlib.crc32(source.encode()) % 3 == 0


def answer(line: str) -> str:
    """What the catalogue calls a line."""
    name = find(Evidence(rank=0, log=(line,)), catalogue()).cause.name
    return "none" if name == "unknown" else name


def score(lines: Iterable[dict[str, str]]) -> tuple[Counter[str], Counter[str], Counter[str], list[str]]:
    """By signature: rightly named, wrongly named, missed; and the misses in words."""
    right: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    misses = []
    for each in lines:
        told = answer(each["line"])
        if told == each["is"]:
            right[told] += 1
            continue
        wrong[told] += 1
        missed[each["is"]] += 1
        misses.append(f"{each['is']}, not {told}: {each['line'][:140]}")
    return right, wrong, missed, misses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--of", choices=["dev", "held-out", "all"], default="held-out")
    parser.add_argument(
        "--misses", action="store_true", help="show them: of dev lines alone, if anything is to be changed"
    )
    args = parser.parse_args()
    lines = yaml.safe_load(LINES.read_text())
    chosen = [each for each in lines if args.of == "all" or (args.of == "held-out") == is_held_out(each["source"])]
    right, wrong, missed, misses = score(chosen)
    print(f"| signature ({args.of}) | lines | precision | recall |\n|---|---|---|---|")
    for name in sorted({*right, *wrong, *missed} - {"none"}):
        total = right[name] + missed[name]
        named = right[name] + wrong[name]
        precision = f"{right[name]}/{named}" if named else "-"
        print(f"| {name} | {total} | {precision} | {right[name]}/{total} |")
    failures = [each for each in chosen if each["is"] != "none"]
    hits = sum(count for name, count in right.items() if name != "none")
    named = sum(count for name, count in (right + wrong).items() if name != "none")
    ordinary = len(chosen) - len(failures)
    print(f"| **all** | {len(failures)} | {hits}/{named} | {hits}/{len(failures)} |")
    print(f"\nOrdinary lines left alone: {right['none']} of {ordinary}.")
    if args.misses:
        print("\n".join(misses))


if __name__ == "__main__":
    main()
