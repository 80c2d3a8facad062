"""What a rehearsal finds wrong with a script, and what to change, with its lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from outlast.rehearsal.comparison import Comparison
from outlast.rehearsal.history import JobLife, RunHistory
from outlast.rehearsal.records import LoaderRecord, LoadRecord, RankLife, SaveRecord, StepRecord
from outlast.rehearsal.results import RunEnd, RunResult, recoveries

STUBBORN = 0.8  # of the time that a node has to leave: whoever takes longer has not reacted to SIGTERM


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `problem`: training does not survive exactly; else it is good to know."""

    kind: str
    problem: bool
    seen: str  # what happened
    change: str  # what to do about it
    line: str = ""  # file:line


def not_repeatable(again: Comparison, base: RunHistory, other: RunHistory) -> Flaw | None:
    """Two undisturbed runs differ: then no restart can be compared to the bit, and the cause is not the restart."""
    parting = again.parting
    if parting is None:
        return None
    if parting.what == "samples":
        loaders = _loaders(base)
        unseeded = [loader for loader in loaders if not loader.seeded]
        line = (unseeded or loaders or [LoaderRecord("", "", True)])[0].line
        return Flaw(
            kind="unseeded-shuffle",
            problem=True,
            seen=f"two undisturbed runs take samples in another order from step {parting.step} on",
            change="seed the shuffle: pass DataLoader generator=torch.Generator().manual_seed(0), or use "
            "outlast.ElasticLoader, which shuffles by seed and epoch",
            line=line,
        )
    first = [next(iter(history.steps[1].values())).before for history in (base, other)]
    if first[0] != first[1]:
        what, change = "begin with other weights", "call torch.manual_seed(…) before the model is made"
    else:
        what = f"part at step {parting.step} ({parting.what})"
        change = "seed all random numbers, and call torch.use_deterministic_algorithms(True) to find what is left"
    return Flaw(
        kind="not-deterministic", problem=again.same == "different", seen=f"two undisturbed runs {what}", change=change
    )


def findings_of(
    result: RunResult, base: RunHistory, compared: Comparison | None, *, shutdown: float, cut: bool
) -> list[Flaw]:
    """What this run says about the script. `compared`: with the undisturbed one, if that can be repeated.

    `shutdown`: seconds that a node has to leave. `cut`: runs are cut off before their end.
    """
    if early := list(reads_too_early(result.history)):
        return early  # whatever else happened follows from it
    found = [*_sigterm(result, shutdown), *_restored(result)]
    if result.end is not RunEnd.FINISHED:
        return [*found, _did_not_come_back(result)]
    if any(each.kind == "starts-over" for each in found):
        return found
    if compared is not None:
        found += _differences(result, base, compared, explained=bool(found), cut=cut)
    return found


def _did_not_come_back(result: RunResult) -> Flaw:
    name = result.scenario.name
    load = _failed_load(result.history)
    seen = f"the job {result.end.value} after: {result.scenario.title}"
    if load:
        line, error = load
        if name == "kill-in-save":
            return Flaw(
                kind="save-not-atomic",
                problem=True,
                seen=f"a kill in the middle of a save leaves half a file, and every restart fails on it ({error})",
                change="write to another name and rename it (os.replace) when it is whole, or use outlast.Checkpointer",
                line=_save_line(result.history) or line,
            )
        if name == "damage":
            return Flaw(
                kind="damaged-checkpoint",
                problem=True,
                seen=f"the newest checkpoint is damaged, and every restart fails on it ({error})",
                change="keep more than one checkpoint, and load the one before it when the newest cannot be read; "
                "outlast.Checkpointer does both",
                line=line,
            )
        seen += f" ({error})"
    reason = f": {result.reason}" if result.reason else ""
    change = "see the logs of this run"
    if name == "hang":
        change += "; a rank that hangs must be one that can be killed"
    return Flaw(
        kind="does-not-come-back", problem=True, seen=seen + reason, change=change, line=load[0] if load else ""
    )


def _restored(result: RunResult) -> Iterator[Flaw]:
    """What lives after the first did not find again of what was saved."""
    history = result.history
    saved = [save for job in history.lives for life in job.ranks.values() for save in life.saves]
    for job in history.lives[1:]:
        if not job.agree:
            yield Flaw(
                kind="ranks-differ",
                problem=True,
                seen=f"ranks go on from different steps: {_listed(job.starts)}",
                change="load the same checkpoint on every rank, and save it on one, with dist.barrier() in between",
                line=_load_line(history),
            )
            return
        before = history.lives[history.lives.index(job) - 1]
        if job.start == 0 and before.last > 1 and (not saved or any(save.step for save in saved)):
            yield _starts_over(result, saved, before)
            return
        yield from _optimizer(history, job, saved)


def _starts_over(result: RunResult, saved: list[SaveRecord], before: JobLife) -> Flaw:
    seen = f"training starts again from step 0, {before.last} steps are lost ({result.scenario.title})"
    if not saved:
        return Flaw(
            kind="starts-over",
            problem=True,
            seen=seen + ": the script saves nothing",
            change="save a checkpoint every few minutes, and load it at the start; outlast.Checkpointer does both",
        )
    if result.scenario.name in ("kill-in-save", "damage"):
        return Flaw(
            kind="starts-over",
            problem=True,
            seen=seen + ": the newest checkpoint could not be used, and there is no older one",
            change="keep more than one checkpoint (outlast.Checkpointer(keep_last=3)), and write each to a name of its "
            "own before it takes the place of another",
            line=saved[-1].line,
        )
    return Flaw(
        kind="starts-over",
        problem=True,
        seen=seen + ": the checkpoint is not loaded, or not into the model",
        change="load the newest checkpoint at the start of the script, if there is one",
        line=saved[-1].line,
    )


def _optimizer(history: RunHistory, job: JobLife, saved: list[SaveRecord]) -> Iterator[Flaw]:
    """Whether the optimizer's state has come back with the weights."""
    start = job.start
    if not start:
        return
    for rank, life in job.ranks.items():
        if not life.steps:
            continue
        first = life.steps[0]
        before = _step_before(history, job, rank, start)
        if before is None or not before.optimizer_stateful:
            continue
        if first.optimizer_empty:
            keys = next((save.keys for save in reversed(saved) if save.keys), [])
            kept = f"; what is saved: {', '.join(keys)}" if keys else ""
            yield Flaw(
                kind="optimizer-not-restored",
                problem=True,
                seen=f"after the restart at step {start} the optimizer has no state (momentum is lost){kept}",
                change='save optimizer.state_dict() under "optimizer" beside the model, and load it after the model',
                line=saved[-1].line if saved else "",
            )
            return


def _step_before(history: RunHistory, job: JobLife, rank: int, start: int) -> StepRecord | None:
    for earlier in reversed(history.lives[: history.lives.index(job)]):
        at = start - (earlier.start or 0)
        life = earlier.ranks.get(rank)
        if life is not None and 0 < at <= len(life.steps):
            return life.steps[at - 1]
    return None


def _differences(
    result: RunResult, base: RunHistory, compared: Comparison, *, explained: bool, cut: bool
) -> Iterator[Flaw]:
    """Why this run is not the undisturbed one. A run with fewer nodes cannot be the same to the bit."""
    history, samples = result.history, compared.samples
    resumed = bool(result.scenario.faults)
    if resumed and (samples.more or samples.fewer) and not (compared.worlds_differ and cut):
        loaders = _loaders(history)
        yield Flaw(
            kind="samples",
            problem=True,
            seen=_sample_sentence(compared, result),
            change="save where the epoch was, and go on there: outlast.ElasticLoader (or ElasticSampler) has a "
            "state_dict() for your checkpoint, and is exact on any number of ranks",
            line=loaders[0].line if loaders else "",
        )
        return
    if compared.same == "bits" or compared.worlds_differ or explained:
        return
    parting = compared.parting
    assert parting is not None
    line = _save_line(history)
    if parting.what == "learning rate":
        yield Flaw(
            kind="schedule-not-restored",
            problem=True,
            seen=f"at step {parting.step} the learning rate is {parting.theirs:g}, undisturbed it was {parting.mine:g}",
            change="save scheduler.state_dict() and load it with the rest",
            line=line,
        )
    elif parting.what == "samples":
        yield Flaw(
            kind="sample-order",
            problem=True,
            seen=f"from step {parting.step} on, samples come in another order than undisturbed",
            change="seed the shuffle by the epoch (sampler.set_epoch), or use outlast.ElasticLoader",
            line=next((loader.line for loader in _loaders(history)), ""),
        )
    elif result.scenario.name == "damage":
        yield Flaw(
            kind="damaged-checkpoint",
            problem=True,
            seen=f"the damaged checkpoint is loaded without an error: the numbers differ from step {parting.step} on",
            change="verify what you load (torch.load does not): keep a checksum beside it, or use outlast.Checkpointer",
            line=_load_line(history),
        )
    else:
        yield _numbers_differ(compared, base, history, line)


def _numbers_differ(compared: Comparison, base: RunHistory, history: RunHistory, line: str) -> Flaw:
    parting = compared.parting
    assert parting is not None
    step = parting.step
    random = base.steps[step][parting.rank].rng != history.steps[step][parting.rank].rng
    change = (
        "save the random numbers with the rest: torch.get_rng_state(), and set them when you load"
        if random
        else "look at what is kept between steps and not saved: EMA weights, a gradient scaler, buffers"
    )
    return Flaw(
        kind="random-numbers" if random else "numbers-differ",
        problem=compared.same == "different",
        seen=f"{parting.what} differs from step {step} on (loss by up to {compared.loss_difference:.2g})",
        change=change,
        line=line,
    )


def _sample_sentence(compared: Comparison, result: RunResult) -> str:
    samples, parts = compared.samples, []
    if samples.fewer:
        parts.append(f"{samples.fewer} samples are never trained ({_names(samples.named_fewer, samples.fewer)})")
    if samples.more:
        parts.append(f"{samples.more} are trained once too often ({_names(samples.named_more, samples.more)})")
    at = recoveries(result.history)
    where = f" after the restart from step {at[0].start}" if at and at[0].start is not None else ""
    return " and ".join(parts) + where


def _names(named: tuple[str, ...], whole: int) -> str:
    return ", ".join(named) + (", …" if whole > len(named) else "")


def reads_too_early(history: RunHistory) -> Iterator[Flaw]:
    """A rank that reads a file while another one still writes it."""
    everyone = [life for job in history.lives for life in job.ranks.values()] + history.stillborn
    saves = [(save, life) for life in everyone for save in life.saves if save.path]
    for reader in everyone:
        for load in reader.loads:
            for save, writer in saves:
                same = save.path == load.path and writer.born.generation == reader.born.generation
                if same and writer is not reader and save.began < load.time and load.began < save.time:
                    yield _too_early(reader, load, writer, save)
                    return


def _too_early(reader: RankLife, load: LoadRecord, writer: RankLife, save: SaveRecord) -> Flaw:
    fate = f" ({load.error})" if load.error else ""
    name, saved, loaded = _short(load.path), _number(save.line), _number(load.line)
    return Flaw(
        kind="read-while-written",
        problem=True,
        seen=f"rank {reader.born.rank} reads {name} while rank {writer.born.rank} is still writing it{fate}",
        change=f"add dist.barrier() after the save (line {saved}), before anybody reads it (line {loaded})",
        line=save.line,
    )


def _sigterm(result: RunResult, shutdown: float) -> Iterator[Flaw]:
    """A node was told to leave: did its ranks take notice?"""
    asked = [(fault, job) for fault, job in result.history.faults() if fault.what == "preempt"]
    if not asked:
        return
    fault, job = asked[0]
    ranks = job.ranks.values()
    took = result.drain_seconds or 0.0
    ignored = any(life.setup is not None and life.setup.handler == "ignored" for life in ranks)
    if not ignored and took < STUBBORN * shutdown:
        return
    more = max(sum(step.made > fault.time for step in life.steps) for life in ranks)
    yield Flaw(
        kind="ignores-sigterm",
        problem=True,
        seen=f"the script {'ignores' if ignored else 'does not end on'} SIGTERM: it made {more} more steps, and the "
        f"preempted node was gone {took:.1f} s later",
        change="on SIGTERM, save and exit, or leave the signal alone: schedulers kill after a grace period",
        line=next((handler.line for life in ranks for handler in life.handlers), ""),
    )


def setup_notes(results: Iterable[RunResult], *, least: float = 1.0) -> list[Flaw]:
    """Lines of the script that make every single restart slow: one that had to wait for others once is none."""
    known = [each for result in results for each in recoveries(result.history) if each.total is not None]
    lines = {line for each in known for line, _ in each.lines if line}
    found = []
    for line in sorted(lines):
        fastest = min(dict(each.lines).get(line, 0.0) for each in known)
        if fastest >= least:
            found.append(
                Flaw(
                    kind="slow-setup",
                    problem=False,
                    seen=f"this line takes {fastest:.1f} s or more in each restart",
                    change="do it later, keep its result on disk, or restart in place (docs/in-process.md)",
                    line=line,
                )
            )
    return found


def unique(findings: Iterable[Flaw]) -> list[Flaw]:
    """Each kind once per line, problems first."""
    by_kind: dict[tuple[str, str], Flaw] = {}
    for each in findings:
        by_kind.setdefault((each.kind, each.line), each)
    return sorted(by_kind.values(), key=lambda each: not each.problem)


def _loaders(history: RunHistory) -> list[LoaderRecord]:
    return [loader for job in history.lives for life in job.ranks.values() for loader in life.loaders if loader.line]


def _save_line(history: RunHistory) -> str:
    lines = [save.line for job in history.lives for life in job.ranks.values() for save in life.saves if save.line]
    return lines[-1] if lines else ""


def _load_line(history: RunHistory) -> str:
    lines = [load.line for job in history.lives for life in job.ranks.values() for load in life.loads if load.line]
    return lines[-1] if lines else ""


def _failed_load(history: RunHistory) -> tuple[str, str] | None:
    everyone = [life for job in history.lives for life in job.ranks.values()] + history.stillborn
    failed = [(load.line, load.error) for life in everyone for load in life.loads if load.error]
    return failed[-1] if failed else None


def _listed(starts: dict[int, int]) -> str:
    return ", ".join(f"rank {rank} from {step}" for rank, step in sorted(starts.items())[:8])


def _short(path: str) -> str:
    return path.rpartition("/")[2]


def _number(line: str) -> str:
    return line.rpartition(":")[2] or "?"
