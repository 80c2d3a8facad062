"""`outlast checkpoints`: what is in a directory of checkpoints, and whether it is whole.

Only `export` and `import` need torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from outlast.checkpoint.storage import format as disk
from outlast.checkpoint.storage.format import Damaged, Manifest
from outlast.checkpoint.storage.persist import prune
from outlast.checkpoint.storage.storage import Address, FoundCheckpoint, address
from outlast.cli.flags import Parser

WIDTH = 30  # characters of a progress bar


def main(argv: Sequence[str]) -> int:
    """What is asked for. 1 if something is damaged or missing, 2 for what cannot be understood or done."""
    parser = Parser(prog="outlast checkpoints", description="Looks after a directory of checkpoints.")
    actions = ["list", "verify", "show", "prune", "export", "import"]
    parser.add_argument("action", choices=actions, help="What to do.")
    parser.add_argument(
        "path", help="What outlast.Checkpointer was given (a directory, s3://…), or one checkpoint in it."
    )
    parser.add_argument("out", nargs="?", help="export: the file to write. import: the directory of checkpoints.")
    parser.add_argument(
        "--step", type=int, help="Only the checkpoint of this step; export: this, and not the newest; import: its step."
    )
    parser.add_argument("--keep-last", type=int, help="prune: how many of the newest to keep.")
    parser.add_argument("--format", choices=["safetensors", "torch"], help="export: else by the name of the file.")
    parser.add_argument("--part", default="", help="export: only this entry of the state, as 'model'.")
    parser.add_argument(
        "--rename", action="append", default=[], metavar="OLD=NEW", help="import: call this entry of the state so."
    )
    args, unknown = parser.parse_known_intermixed_args(argv)
    if unknown:
        parser.unknown(unknown[0])
    try:
        if args.action == "import":
            return _import(args.path, args.out, args.step, args.rename)
        if args.out is not None and args.action != "export":
            raise ValueError(f"{args.action} takes one path, and not {args.out!r} as well")
        if args.action == "prune":
            return _prune(address(args.path), args.keep_last)
        chosen = _choose(address(args.path), args.step)
        if args.action == "export":
            return _export(chosen[0], args.out, args.format, args.part)
        return {"list": _list, "verify": _verify, "show": _show}[args.action](chosen)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"outlast checkpoints: error: {error}", file=sys.stderr)
        return 2


def _choose(path: Address, step: int | None) -> list[FoundCheckpoint]:
    """All checkpoints of a directory, or the one that is meant."""
    if isinstance(path, Path) and not path.is_dir():
        raise ValueError(f"{path} is not a directory: give the one that outlast.Checkpointer was given")
    chosen = [each for each in disk.found(path.parent) if each.path == path] or disk.found(path)
    if not chosen:
        raise ValueError(f"{path} holds no checkpoints of Outlast")
    if step is None:
        return chosen
    fitting = [each for each in chosen if each.step == step]
    if not fitting:
        steps = ", ".join(str(each.step) for each in chosen)
        raise ValueError(f"{path} has no checkpoint of step {step}; there are: {steps}")
    return fitting


def _list(chosen: list[FoundCheckpoint]) -> int:
    rows, damaged = [("checkpoint", "step", "ranks", "size", "saved", "")], False
    for each in chosen:
        try:
            manifest = disk.read_manifest(each.path)
            problem = next(iter(disk.check(each.path, manifest).values()), "")
            rows.append((each.path.name, *_facts(manifest), f"DAMAGED: {problem}" if problem else ""))
        except Damaged as error:
            problem = str(error)
            rows.append((each.path.name, str(each.step), "", "", "", f"DAMAGED: {problem}"))
        damaged = damaged or bool(problem)
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join([*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[5]]).rstrip())
    return 1 if damaged else 0


def _verify(chosen: list[FoundCheckpoint]) -> int:
    damage = 0
    for each in chosen:
        progress = _progress(each.path)
        problems = disk.verify(each.path, progress)
        progress(-1)
        for problem in problems:
            print(f"{each.path.name}: {problem}")
        if not problems:
            print(f"{each.path.name}: whole")
        damage += bool(problems)
    return 1 if damage else 0


def _show(chosen: list[FoundCheckpoint]) -> int:
    for each in chosen:
        try:
            manifest = disk.read_manifest(each.path)
        except Damaged as error:
            print(f"outlast checkpoints: error: {error}", file=sys.stderr)
            return 1
        save = manifest.save
        step, ranks, size, when = _facts(manifest)
        print(f"{each.path}\n  step {step}, saved {when} by {ranks} ranks, {size}")
        print(f"  job {save.job or '(none)'}, generation {save.generation}, run {save.run}, save {save.sequence}")
        for file in manifest.files:
            print(f"  {file.name:<20} {file.size:>14,} bytes  {len(file.chunks)} chunks")
    return 0


def _prune(path: Address, keep_last: int | None) -> int:
    if keep_last is None or keep_last < 1:
        raise ValueError("prune needs --keep-last with the number of checkpoints to keep, at least 1")
    _choose(path, None)
    removed = prune(path, keep_last, verify=True)
    for each in removed:
        print(f"removed {each}")
    for draft in disk.clear_drafts(path):
        print(f"removed {path / draft.name}, which was abandoned")
    print(f"{len(disk.found(path))} left")
    return 0


def _import(path: str, out: str | None, step: int | None, renames: Sequence[str]) -> int:
    if out is None:
        raise ValueError("import needs two paths: what to import, and the directory of checkpoints")
    names = dict(rename.partition("=")[::2] for rename in renames)
    if not all(names.values()):
        raise ValueError("--rename takes OLD=NEW, as in --rename optimizer=optim")
    from outlast.checkpoint.trainer.foreign import import_checkpoint

    made = import_checkpoint(Path(path), address(out), step=step, names=names)
    print(f"{path}: {made}")
    return 0


def _export(chosen: FoundCheckpoint, out: str | None, kind: str | None, part: str) -> int:
    if out is None:
        raise ValueError("export needs the name of the file to write")
    from outlast.checkpoint.trainer.export import export, format_of

    progress = _progress(chosen.path)
    try:
        left_out = export(chosen.path, Path(out), kind or format_of(Path(out)), part=part, progress=progress)
    except Damaged as damaged:
        print(f"outlast checkpoints: error: {damaged}: nothing was exported", file=sys.stderr)
        return 1
    finally:
        progress(-1)
    if left_out:
        few = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
        print(f"skipped, not a tensor: {few}", file=sys.stderr)
    print(f"{out}: step {chosen.step}, {_size(Path(out).stat().st_size)}")
    return 0


def _facts(manifest: Manifest) -> tuple[str, str, str, str]:
    when = datetime.fromtimestamp(manifest.saved_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return str(manifest.save.step), str(manifest.save.world), _size(manifest.size), when


def _size(count: int) -> str:
    """
    >>> _size(5), _size(3 * 2**20), _size(5 * 2**30)
    ('5 B', '3.0 MiB', '5.0 GiB')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _progress(path: Address) -> Callable[[int], None]:
    """A bar on a terminal, nothing elsewhere. Told -1, it goes away."""
    if not sys.stderr.isatty():
        return lambda _: None
    try:
        total = disk.read_manifest(path).size or 1
    except Damaged:
        return lambda _: None
    done = 0

    def show(size: int) -> None:
        nonlocal done
        done = min(done + max(size, 0), total)
        bar = "█" * (WIDTH * done // total)
        text = "" if size < 0 else f"{path.name} {bar:<{WIDTH}} {done / total:4.0%}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return show
