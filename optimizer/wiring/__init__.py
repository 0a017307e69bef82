"""The composition root: builds knowledge, journal, box and executor for a command, runs it, and writes what is kept. The only
place where everything meets; it decides nothing."""

from __future__ import annotations

import difflib
import json
import math
import os
import platform
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from optimizer import __version__, log
from optimizer.box.box import Box
from optimizer.box.plain import procfs
from optimizer.box.results import BoxLocked
from optimizer.core.closing import summary
from optimizer.core.plan import Plan
from optimizer.core.prior import extended
from optimizer.core.state import State, fold
from optimizer.engines.registry import engine
from optimizer.errors import (
    BoxError,
    JournalError,
    KnowledgeChanged,
    KnowledgeError,
    NeedsOperator,
    OptimizerError,
    UsageError,
)
from optimizer.journal import Holder, Journal, Place
from optimizer.journal.lease import driven_by
from optimizer.knowledge.library import Library, library_from_files, load_library
from optimizer.knowledge.load import find_knowledge, read_files
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.study import Budget, Finish, LaunchSpec, Policy, Sampler, StudySpec
from optimizer.model.target import Target, parse_target
from optimizer.model.workload import Workload
from optimizer.report.prose import sentence
from optimizer.report.reproducing import workload_file
from optimizer.report.study import launch_files, report_markdown
from optimizer.runner import hosts
from optimizer.runner.answers import read_probes
from optimizer.runner.execute import LiveExecutor, knowledge_blob
from optimizer.runner.loop import StopRequest, Watch, drive
from optimizer.runner.signals import interruptible
from optimizer.runner.survey import Unfit, find_target
from optimizer.transport.base import Transport
from optimizer.transport.local import LocalTransport
from optimizer.wiring import learning
from optimizer.wiring.leasing import held
from optimizer.wiring.leaving import tell_of_boxes
from optimizer.wiring.priors import find_known
from optimizer.wiring.roots import Roots as Roots
from optimizer.wiring.roots import journal_of as journal_of

_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # it becomes a folder here and on the box, and part of every launch id
_LATENCY = re.compile(r"(ttft|tpot|itl|e2e)_p[0-9]{1,2}_ms")
STOPPED = "Stopped by `optimize stop`."
LONGEST_MINUTES = 4 * 7 * 24 * 60
PINNED_PACKAGES = ("optuna", "pydantic", "asyncssh", "httpx", "sqlite-utils")
EXIT_OF_ENDING = {
    "met": 0, "not_met": 3, "unreachable_by_configuration": 3, "nothing_to_tune": 3, "unfit": 4, "needs_operator": 5,
    "guard_fired": 5, "interrupted": 130,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What ``run`` and ``plan`` were asked on the command line, parsed but not resolved."""

    host: str
    more_hosts: tuple[str, ...] = ()  # further boxes of the same class that share the study
    target: tuple[str, ...] = ()
    engine: str | None = None
    launch: str | None = None
    workload: Path | None = None
    concurrency: int | None = None  # this and the next two: instead of what the workload says
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    port: int | None = None
    minutes: float = 120.0
    launches: int = 20
    thorough: bool = False
    yes: bool = False
    finish: Finish | None = None
    allow_lossy: bool = False
    probes: Path | None = None
    inside: str | None = None
    best_effort: bool = False
    guard_minutes: float = 15.0
    time_scale: float | None = None
    confirm_window_s: float | None = None
    study: str | None = None
    seed: int | None = None
    prior: tuple[str, ...] = ()
    sampler: Sampler = "gp"
    tradeoff: str = ""
    policy: Policy = "evidence"
    params: tuple[str, ...] = ()  # of a control arm


def library(roots: Roots) -> Library:
    return load_library(find_knowledge(roots.knowledge))


def with_learned(known: Library, text: str | None) -> Library:
    """The library with the user's own experience, so that it is pinned with everything else; unchanged without any."""
    return known if text is None else library_from_files({**known.files, learning.PINNED_NAME: text})


def plan_of(known: Library) -> Plan:
    """The part of a library that decisions use."""
    return Plan(
        playbooks=known.playbooks,
        spaces=known.spaces,
        dead=known.dead,
        constraints=known.constraints,
        hardware=known.hardware,
        learned=known.learned,
        digest=known.digest,
    )


# ---- what the user asked for ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    spec: StudySpec
    folder: Path


def prepare(options: Options, roots: Roots, *, need_target: bool = True, prior_roots: Roots | None = None) -> Prepared:
    """Resolve the options into the pinned spec. Raises UsageError before anything is touched, and leaves nothing then. ``prior_roots``:
    where earlier studies lie, if not under ``roots``."""
    named = replace(options, study=secrets.token_hex(3)) if options.study is None else options
    folder = roots.runs / str(named.study)
    ours = bool(_STUDY.fullmatch(str(named.study))) and not folder.exists()
    try:
        return _prepare(named, roots, need_target, prior_roots)
    except OptimizerError:
        with _gone_unless_opened(folder) if ours else nullcontext():
            raise


def _prepare(options: Options, roots: Roots, need_target: bool, prior_roots: Roots | None) -> Prepared:
    _check_numbers(options)
    _check_policy(options, roots)
    if options.engine is not None:
        engine(options.engine)
    host = hosts.parse_host(options.host)
    study = str(options.study)
    if not _STUDY.fullmatch(study) or study in ("recorded", "diagnose", "restore"):
        raise UsageError(
            f"{study!r} cannot be the name of a study.",
            hint="Up to 64 letters, digits, dots, dashes and underscores, beginning with a letter or digit.",
        )
    folder = roots.runs / study
    if options.study and prior_roots is None and roots.is_taken(study):
        raise UsageError(f"There is a study {study!r} already.", hint=f"optimize resume {study}, or choose another name.")
    description = hosts.describe(host, (Path("hosts"), _config_folder() / "hosts"))
    launch = hosts.parse_launch(options.launch) if options.launch is not None else hosts.launch_of(description)
    base, target_text, scale = Workload(), list(options.target), 1.0
    if host.kind == "sim":
        from optimizer.engines import simulator

        box = simulator.prepare_box(host.name[4:], folder / "box", options.time_scale, options.seed)
        base, scale = box.workload, box.time_scale
        launch = launch or LaunchSpec(argv=tuple(box.argv), env=dict(box.launch_env), cwd=str(box.cwd) if box.cwd else None)
        target_text = target_text or ([box.target] if box.target else [])
    elif options.time_scale not in (None, 1.0):
        raise UsageError("--time-scale is for simulated boxes only: a real server's clock cannot be hurried.")
    if need_target and not target_text:
        raise UsageError(
            "No target was given.", hint="Example: --target 1000tps@16 (output tokens/s at concurrency 16). On a terminal, `optimize run --host NAME` asks for it."
        )
    target = parse_target(target_text) if target_text else Target()
    if target.primary is not None and target.primary.metric == "error_rate":
        raise UsageError("An error rate alone is nothing to tune for.", hint="Combine it: --target 1000tps@16,error_rate<1%")
    workload = _workload(options, base, target)
    if target.concurrency is not None and target.concurrency != workload.concurrency:
        sides = tuple(dict.fromkeys((*(level for level in workload.side_levels if level != target.concurrency),)))
        workload = workload.model_copy(update={"concurrency": target.concurrency, "side_levels": sides})
    workload = hosts.fitted(workload, target)
    if options.confirm_window_s is not None:
        workload = workload.model_copy(update={"confirm_window_s": options.confirm_window_s})
    known = find_known((*options.prior, *description.prior) if options.policy == "evidence" else ("none",), prior_roots or roots, own=study)
    spec = StudySpec(
        study=study,
        host=hosts.resolved_host(host, description, options.inside),
        target=target,
        workload=workload,
        engine=options.engine or description.engine,
        launch=launch,
        port=options.port or description.port,
        budget=Budget(minutes=options.minutes, launches=options.launches),
        finish=options.finish,
        allow_lossy=options.allow_lossy,
        probes=read_probes(options.probes) if options.probes else (),
        thorough=options.thorough,
        best_effort=options.best_effort,
        consent=options.yes or host.kind == "sim",
        guard_minutes=options.guard_minutes,
        time_scale=scale,
        prior_art=known.prior_art,
        earlier=known.earlier,
        sampler=options.sampler,
        tradeoff=options.tradeoff,
        policy=options.policy,
        params=options.params,
        seed=options.seed if options.seed is not None else int(study, 16) % 100_000 if _is_hex(study) else 0,
    )
    return Prepared(spec=spec, folder=folder)


def _workload(options: Options, base: Workload, target: Target) -> Workload:
    """What the file says, then what single options say. Raises UsageError where they do not fit."""
    workload = hosts.read_workload(options.workload, base) if options.workload else base
    given = {"concurrency": options.concurrency, "prompt_tokens": options.prompt_tokens, "output_tokens": options.output_tokens}
    if options.concurrency is not None and target.concurrency not in (None, options.concurrency):
        raise UsageError(f"The target names concurrency {target.concurrency}, --concurrency {options.concurrency}.", hint="Give one of them.")
    changes = {name: value for name, value in given.items() if value is not None}
    if {"prompt_tokens", "output_tokens"} & changes.keys() and (workload.trace or workload.conversations or workload.prompt_lengths or workload.output_lengths):
        raise UsageError("The workload file says how long each request is.", hint="Leave --prompt-tokens and --output-tokens away.")
    try:
        return Workload.model_validate({**workload.model_dump(), **changes})
    except ValueError as error:
        raise UsageError(f"The options do not make a workload: {hosts.faults(error, Workload, 'the load').rstrip('.')}.", hint="docs/workloads.md has the fields and their limits.") from error


def _check_numbers(options: Options) -> None:
    if options.launches < 2:
        raise UsageError(f"A budget of {options.launches} launches cannot test anything.", hint="Give at least --launches 2.")
    if not 0 < options.minutes <= LONGEST_MINUTES:
        raise UsageError(f"A budget of {options.minutes:g} minutes is none: it must be longer than 0, and four weeks at most.", hint="Example: --budget 2h")
    if options.tradeoff and not _LATENCY.fullmatch(options.tradeoff):
        raise UsageError(f"--tradeoff {options.tradeoff!r} is no latency that is measured.", hint="Examples: tpot_p50_ms, ttft_p99_ms, e2e_p90_ms")
    numbers = {"--guard-minutes": options.guard_minutes, "--confirm-window": options.confirm_window_s, "--time-scale": options.time_scale}
    for name, value in numbers.items():
        if value is not None and not math.isfinite(value):
            raise UsageError(f"{name} {value} is no number that can be used.")


def _check_policy(options: Options, roots: Roots) -> None:
    """A control arm searches one space on one box, and its parameters are known ones."""
    if options.policy == "evidence":
        if options.params:
            raise UsageError("--params is for a control arm.", hint="With --policy tpe or random it names what the sampler may move; evidence decides that itself.")
        return
    if options.more_hosts or options.tradeoff:
        raise UsageError(f"--policy {options.policy} is a control arm: one box, one number.", hint=f"Leave {'the other --host' if options.more_hosts else '--tradeoff'} away.")
    if options.prior not in ((), ("none",)):
        raise UsageError(f"--policy {options.policy} starts from nothing, so that it is comparable.", hint="Leave --prior away.")
    known = {param.name for space in library(roots).spaces for param in space.params}
    for name in options.params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            raise UsageError(f"No search space has a parameter {name!r}.", hint=f"Did you mean {' or '.join(near)}?" if near else "search_spaces/ lists them; names have underscores: max_running_requests")


@contextmanager
def _writable(runs: Path) -> Iterator[None]:
    """A folder of studies that cannot be written is told before anything else happens."""
    try:
        yield
    except OSError as error:
        raise JournalError(
            f"The folder of the studies cannot be written: {error.filename or runs}: {error.strerror}.",
            why="Without a journal nothing is done.",
            hint="Name another folder: optimize --runs FOLDER run …",
        ) from error


def _is_hex(text: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in text)


def _config_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "optimize"


# ---- the box --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_box(spec: StudySpec, folder: Path) -> AsyncIterator[Box]:
    """The box of a study, connected; closed again at the end."""
    box = Box(await _transport(spec, folder))
    try:
        yield box
    finally:
        await box.close()


async def _transport(spec: StudySpec, folder: Path) -> Transport:
    if spec.host.kind == "sim":
        from optimizer.engines import simulator

        sim = simulator.prepare_box(spec.host.name[4:], folder / "box", spec.time_scale)
        return LocalTransport(env=sim.env, home=sim.home, name=spec.host.name)
    if spec.host.kind == "local":
        return LocalTransport(prefix=spec.host.prefix)
    from optimizer.transport.ssh import SSHTransport

    transport = SSHTransport(spec.host.name, prefix=spec.host.prefix)
    await transport.connect()
    return transport


# ---- running --------------------------------------------------------------------------------------------------------


async def run_study(
    options: Options, roots: Roots, *, watch: Watch | None = None, progress: Callable[[str], None] | None = None,
    announce: Callable[[StudySpec, str], None] | None = None, say: Callable[[str], None] | None = None,
) -> tuple[State, Plan, Path]:  # fmt: skip
    """A whole study, from nothing to its end. What only a person can say is in ``options``: ``wiring.questions`` asks for it."""
    if options.more_hosts:
        from optimizer.wiring import boxes

        return await boxes.run(options, roots, watch=watch, progress=progress, announce=announce, say=say)
    known = library(roots)
    with _writable(roots.runs):
        prepared = prepare(options, roots)
    spec, folder = prepared.spec, prepared.folder
    if spec.host.kind != "sim":  # a simulated box behaves as its file says, whatever was learned elsewhere
        known = with_learned(known, learning.pinned_text(roots.store))
    stop = StopRequest()
    with interruptible(stop, say), _gone_unless_opened(folder):
        async with AsyncExitStack() as stack:
            box = await stop.before_opening(_free_box(stack, spec, folder), "No study was opened, and nothing was changed.")
            with _writable(roots.runs):
                created = Journal.create(journal_of(roots.place(spec.study)))
                folder.mkdir(parents=True, exist_ok=True)
            with created as journal:
                if announce is not None:
                    announce(spec, journal.where)
                journal.append("opened", opened_body(spec, known), expect=journal.last_seq, blobs={"knowledge.json": knowledge_blob(known)})
                executor = LiveExecutor(box, spec, known, progress)
                return await _drive(journal, executor, plan_of(known), folder, watch, stop), plan_of(known), folder


@contextmanager
def _gone_unless_opened(folder: Path) -> Iterator[None]:
    """A study that was never opened leaves no folder behind, nor its simulated box; anything else in there is somebody's."""
    try:
        yield
    finally:
        if folder.is_dir() and {path.name for path in folder.iterdir()} <= {"box", "boxes"}:
            shutil.rmtree(folder, ignore_errors=True)


async def _free_box(stack: AsyncExitStack, spec: StudySpec, folder: Path) -> Box:
    """The box, before there is a study: nobody else holds it, and its server may be stopped. Raises BoxLocked, UsageError."""
    box = await stack.enter_async_context(opened_box(spec, folder))
    holder = await box.holder() if spec.host.kind != "sim" else None
    if holder is not None and not holder.gone:
        where = f", at work on {holder.elsewhere}, which shares this home directory" if holder.elsewhere else ""
        restore = f" If it is lost: optimize restore --host {spec.host.name}"
        raise BoxLocked(
            f"{spec.host.name} is held by study {holder.study} (coordinator {holder.coordinator_name}){where}.",
            why="Two on one box would measure each other, so nothing was changed.",
            hint=f"Wait for it, or end it where it was started: optimize stop {holder.study}." + ("" if where else restore),
        )
    if spec.host.kind != "sim" and await box.left_by(spec.study):
        raise UsageError(
            f"{spec.host.name} still has files of an earlier study {spec.study!r}, whose launches would be taken for those of the new one.",
            hint=f"Choose another name (--study). If the earlier one holds the box: optimize restore --host {spec.host.name}",
        )
    await _check_consent(box, spec)
    return box


async def resume_study(
    name: str, roots: Roots, *, watch: Watch | None = None, progress: Callable[[str], None] | None = None, adopt: bool = False,
    say: Callable[[str], None] | None = None,
) -> tuple[State, Plan, Path]:  # fmt: skip
    """Continue an interrupted study: reconcile its open intent, then go on as if nothing had happened."""
    place = roots.study(name)
    folder = roots.folder(place)
    with Journal.open(place, write=False) as journal:  # who has nothing to do writes nothing, not even that he looked
        entries = journal.read()
        state = fold(entries)
        if state.closed is not None:
            plan = plan_of(pinned_library(journal, entries))  # nothing is decided any more, whatever the files say now
            if not (folder / "report.md").exists():  # it died between its last entry and its report
                await _report_missed(journal, entries, state, plan, folder)
            return state, plan, folder
    with Journal.open(place, write=True) as journal:
        entries = journal.read()
        state = fold(entries)
        if state.spec is None:
            raise JournalError(f"Study {name} was never opened completely.", why="It holds nothing to go on from, and nothing was changed on the box.", hint="Start it again, under this name or another.")
        if state.closed is not None:  # meanwhile, by another
            return state, plan_of(pinned_library(journal, entries)), folder
        if state.spec.boxes:
            from optimizer.wiring import boxes

            plan = _pinned_plan(journal, entries, roots, adopt=adopt)
            return await boxes.resume(journal, journal.read(), state, plan, folder, watch=watch, progress=progress, say=say), plan, folder
        plan = _pinned_plan(journal, entries, roots, adopt=adopt)
        stop = StopRequest()
        with interruptible(stop, say):
            async with AsyncExitStack() as stack:
                opening = stack.enter_async_context(opened_box(state.spec, folder))
                box = await stop.before_opening(opening, "The study is as far as it was.")
                known = pinned_library(journal, journal.read())
                executor = LiveExecutor(box, state.spec, known, progress)
                executor.remember(entries, journal.blob)
                return await _drive(journal, executor, plan, folder, watch, stop), plan, folder


async def _report_missed(journal: Journal, entries: Sequence[Entry], state: State, plan: Plan, folder: Path) -> None:
    """The files of a closed study, which writes no entry any more."""
    assert state.spec is not None
    if state.spec.boxes:
        from optimizer.wiring import boxes

        await boxes.resume(journal, entries, state, plan, folder)
        return
    reader = LiveExecutor(Box(LocalTransport()), state.spec, pinned_library(journal, entries))
    reader.remember(entries, journal.blob)
    keep_results(journal, reader, state, plan, folder)


async def _drive(journal: Journal, executor: LiveExecutor, plan: Plan, folder: Path, watch: Watch | None, stop: StopRequest) -> State:
    """To the end of the study; signals have to be routed to ``stop`` already."""
    stop.on_hurry = executor.hurry
    executor.guard_lost = lambda why: stop.ask(why, "guard_fired")
    executor.box_unfit = lambda why: stop.ask(why, "needs_operator")
    log.configure(level="error", log_file=folder / "log.jsonl", redactor=journal.redactor)
    stop_file = folder / "stop"
    stop.asked_by = lambda: STOPPED if stop_file.exists() else ""
    try:
        state = await held(journal, drive(journal, executor, plan, stop=stop, watch=_stoppable(stop, stop_file, watch)), stop)
    except Exception as error:
        await tell_of_boxes(error, [executor])
        raise
    finally:
        await executor.close()
    stop_file.unlink(missing_ok=True)
    keep_results(journal, executor, state, plan, folder)
    if state.closed is not None:
        _remember(journal, state)
    return state


def _remember(journal: Journal, state: State) -> None:
    """What the study taught goes into the user's knowledge file; a file that cannot be written takes nothing from the study."""
    assert state.spec is not None
    try:
        learning.remember(state.spec.study, journal.read(), state, journal.database)
    except (OSError, KnowledgeError, JournalError) as error:
        log.get(__name__).warning("nothing was learned from this study", why=str(error))


def _stoppable(stop: StopRequest, stop_file: Path, watch: Watch | None) -> Watch:
    """``optimize stop`` leaves a file; it is looked for between steps as well as signalled."""

    events = log.get("study")

    def watched(state: State, entry: Entry) -> None:
        events.info(entry.kind.value, seq=entry.seq, text=sentence(entry), minutes=round(state.minutes, 2))
        if stop_file.exists() and stop.reason is None:
            stop.ask(STOPPED)
        if watch is not None:
            watch(state, entry)

    return watched


async def _check_consent(box: Box, spec: StudySpec) -> None:
    """A server that runs is stopped only with consent, and without it no study is opened. Raises UsageError."""
    if spec.consent:
        return
    try:
        _, _, original = await find_target(box, spec)
    except Unfit:  # the survey will say so, in the journal
        return
    if original is not None:
        raise left_alone(spec.host.name)


def left_alone(host: str) -> UsageError:
    """Nobody agreed that the server stops."""
    return UsageError(
        f"The server on {host} was left alone: a study would stop it, and nobody agreed to that.",
        hint="Give --yes to let it be stopped and restored. On a terminal, run asks.",
    )


def opened_body(spec: StudySpec, known: Library) -> dict[str, Any]:
    """The first entry: what was asked, and exactly with what it was decided."""
    return {
        "spec": spec.plain(),
        "plan_digest": known.digest,
        "release": __version__,
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PINNED_PACKAGES},
    }


def pinned_library(journal: Journal, entries: Sequence[Entry]) -> Library:
    """The knowledge that is in force at the end of ``entries``."""
    for entry in reversed(entries):
        if entry.kind in (EntryKind.OPENED, EntryKind.KNOWLEDGE_CHANGED) and "knowledge.json" in entry.body.get("blobs", {}):
            return library_from_files(json.loads(journal.blob(entry.body["blobs"]["knowledge.json"])))
    raise JournalError("The study pins no knowledge files: it was not opened by this tool.", why="Its decisions cannot be recomputed.", hint="Name a study that `optimize studies` lists.")


def plans_by_entry(journal: Journal, entries: Sequence[Entry]) -> Callable[[int], Plan]:
    """The plan in force at each entry."""
    plans: list[tuple[int, Plan]] = []
    for entry in entries:
        if "knowledge.json" in entry.body.get("blobs", {}) and entry.kind in (EntryKind.OPENED, EntryKind.KNOWLEDGE_CHANGED):
            plans.append((entry.seq, plan_of(library_from_files(json.loads(journal.blob(entry.body["blobs"]["knowledge.json"]))))))

    def at(seq: int) -> Plan:
        current = [plan for since, plan in plans if since <= seq]
        return current[-1] if current else Plan()

    return at


def _pinned_plan(journal: Journal, entries: Sequence[Entry], roots: Roots, *, adopt: bool) -> Plan:
    pinned = pinned_library(journal, entries)
    now = with_learned(library(roots), pinned.files.get(learning.PINNED_NAME))  # what others taught since then is no change of ours
    if now.digest == pinned.digest:
        return plan_of(pinned)
    changed = sorted(name for name in {*now.files, *pinned.files} if now.files.get(name) != pinned.files.get(name))
    if not adopt:
        raise KnowledgeChanged(
            f"{len(changed)} knowledge files have changed since the study was opened: {', '.join(changed[:5])}.",
            hint="Put them back, or continue with the new ones: optimize resume STUDY --adopt-knowledge (decisions from there on use them).",
        )
    journal.append("knowledge_changed", {"files": changed, "plan_digest": now.digest}, expect=journal.last_seq,
                   blobs={"knowledge.json": knowledge_blob(now)})  # fmt: skip
    return plan_of(now)


def keep_results(journal: Journal, executor: LiveExecutor, state: State, plan: Plan, folder: Path) -> None:
    """``report.md``, ``launch.sh`` and ``env.sh`` in the study's folder. All that it needs is loaded before the first launch: this package
    may have been replaced by the time that a study ends."""
    try:
        _keep_results(journal, executor, state, plan, folder)
    except Exception as error:
        if state.closed is not None and state.spec is not None:
            error.add_note(f"Its study is closed: its journal is whole, and its box is as the journal says. Only its report and what is taken home are missing; "
                           f"`optimize resume {state.spec.study}` writes them.")  # fmt: skip
        raise


def _keep_results(journal: Journal, executor: LiveExecutor, state: State, plan: Plan, folder: Path) -> None:
    plan = extended(state, plan)
    if state.survey is not None and executor.session.context is not None:
        for name, text in {**launch_files(executor, state, plan), **(workload_file(state.spec) if state.spec else {})}.items():
            path = folder / name
            path.write_bytes(procfs.raw(text) if name.endswith(".sh") else text.encode())  # a shell reads bytes, everything else text
            path.chmod(0o755 if name.endswith("launch.sh") else 0o644)
    (folder / "report.md").write_text(report_markdown(journal.read(), state, plan), encoding="utf-8")


def result_of(state: State, plan: Plan) -> dict[str, Any]:
    """What ``run --json`` prints."""
    plan = extended(state, plan)
    return dict(state.closed) if state.closed is not None else {**summary(state, plan), "ending": "interrupted", "reason": "The study is still open."}


# ---- commands without a study ---------------------------------------------------------------------------------------


def diagnose_bundle(paths: Sequence[Path], roots: Roots) -> Any:
    """Rank causes from one evidence bundle; a second one is the baseline of the comparison."""
    from optimizer.evidence.bundle import read_bundle
    from optimizer.runner.diagnose import diagnose

    bundles = [read_bundle(path) for path in paths]
    return diagnose(bundles[0], library(roots), bundles[1] if len(bundles) > 1 else None)


async def diagnose_host(name: str, roots: Roots, *, port: int | None, engine: str | None, inside: str | None = None) -> Any:
    """The same from a live box; reads only."""
    host = hosts.parse_host(name)
    if host.kind == "sim":  # no server runs there before a study launches one: the box and the described launch are read
        with tempfile.TemporaryDirectory(prefix="optimize-diagnose-") as scratch:
            prepared = prepare(Options(host=name, engine=engine), replace(roots, runs=Path(scratch)), need_target=False)
            return await _diagnose_live(prepared.spec, prepared.folder, library(roots))
    description = hosts.describe(host, (Path("hosts"), _config_folder() / "hosts"))
    spec = StudySpec(study="diagnose", host=hosts.resolved_host(host, description, inside), target=Target(), workload=Workload(),
                     engine=engine or description.engine, port=port or description.port)  # fmt: skip
    return await _diagnose_live(spec, roots.runs / "diagnose", library(roots), hosts.launch_of(description))


async def _diagnose_live(spec: StudySpec, folder: Path, known: Library, usual: LaunchSpec | None = None) -> Any:
    from optimizer.evidence.bundle import bundle_from_files
    from optimizer.model.outcome import Failed
    from optimizer.runner.diagnose import diagnose
    from optimizer.runner.survey import survey

    async with opened_box(spec, folder) as box:
        effect = await survey(box, spec, usual)
        if isinstance(effect.outcome, Failed):
            raise not_surveyed(effect.outcome.message)
        return diagnose(bundle_from_files(effect.blobs), known)


def holder_of(place: Place) -> Holder | None:
    """The process that is driving a study, if it lives; of a study in a store it may be on another machine. Raises UsageError for a copy
    of a study's folder: that process drives the study that it was copied from."""
    with Journal.open(place, write=False) as journal:
        holder = journal.holder()
    if holder is None or not holder.alive:
        return None
    if isinstance(place, Path) and (others := driven_by(holder.pid, place / "journal.db" if place.is_dir() else place)):
        raise UsageError(f"{place} is a copy: the process that its journal names ({holder.pid}) drives {', '.join(map(str, others))}.",
                         hint=f"To end the study itself: optimize stop {others[0].parent}; a copy can be deleted.")  # fmt: skip
    return holder


def not_surveyed(told: str) -> BoxError:
    """Of a command that only looks: what the survey said, its last line being what to do."""
    message, _, hint = told.rpartition("\n")
    return BoxError(message or hint, why="Nothing was launched, stopped or written there.", hint=hint if message else "")


def has_ended(place: Place) -> bool:
    """Whether the study is closed, so that nothing is left to stop."""
    with Journal.open(place, write=False) as journal:
        return fold(journal.read()).closed is not None


def ask_stop(place: Place) -> bool:
    """Leave word in the store for the coordinator of a study, wherever it runs; False where there is no store."""
    with Journal.open(place, write=False) as journal:
        return journal.ask_stop()


async def restore_host(name: str, inside: str | None = None) -> dict[str, Any]:
    """Bring the box back to what ran before the study that holds it."""
    host = hosts.parse_host(name)
    if host.kind == "sim":
        raise UsageError("A simulated box belongs to its study and is cleaned with it.", hint="optimize studies lists them; optimize stop STUDY ends one and everything that it started.")
    described = hosts.resolved_host(host, hosts.describe(host, (Path("hosts"), _config_folder() / "hosts")), inside)
    spec = StudySpec(study="restore", host=described, target=Target(), workload=Workload())
    async with opened_box(spec, Path("runs/restore")) as box:
        holder = await box.holder()
        if holder is None:
            await box.unlock("restore")  # a lock whose writing was broken off, which is nobody's
            return {"host": name, "restored": False, "text": f"No study holds {name}; nothing was changed."}
        if holder.elsewhere is not None:
            raise BoxLocked(
                f"Study {holder.study} is at work on {holder.elsewhere}, whose home directory {name} shares.",
                why="Its processes cannot be seen from here, so nothing was changed.",
                hint=f"Restore it there, or with --inside. If that place is gone for good, remove ~/.optimizer on {name} by hand.",
            )
        swept = await box.sweep(holder.study, keep_guard=True)
        if swept.remaining:
            raise NeedsOperator(
                f"Processes of study {holder.study} on {name} do not end: {', '.join(map(str, swept.remaining))}.",
                why="Beside them the original server would find no memory or port, so it was not started.",
                hint=f"See what holds them there (ps -o pid,stat,wchan,cmd -p {swept.remaining[0]}), then: optimize restore --host {name}",
            )
        restored = await box.restore_original(holder.study)
        await box.disarm(holder.study)
        await box.cleanup(holder.study)
        await box.unlock(holder.study)
        text = f"Study {holder.study} no longer holds {name}; " + (
            f"the original server runs again (process {restored.pid})." if restored.pid else "no server ran before it, so none runs now."
        )
        return {"host": name, "study": holder.study, "restored": restored.pid is not None, "pid": restored.pid, "text": text}


def lint_knowledge(folder: Path | None, path: Path | None = None) -> dict[str, Any]:
    """Every finding in the knowledge files, with file and line; or those of one more file: a case (JSON) or a knowledge file."""
    from optimizer.knowledge.lint import lint, lint_one
    from optimizer.knowledge.lint_case import LIMIT_BYTES, lint_case

    files = read_files(find_knowledge(folder))
    if path is None:
        findings = lint(files)
    elif path.suffix in (".yaml", ".yml"):
        with path.open("rb") as stream:
            data = stream.read(LIMIT_BYTES + 1)
        findings = lint_one(files, str(path), data.decode("utf-8", "replace"))
    else:
        with path.open("rb") as stream:
            data = stream.read(10 * LIMIT_BYTES)
        findings = lint_case(data, str(path), library_from_files(files).vocabulary)
    lines = [finding.text for finding in findings]
    errors = sum(1 for finding in findings if finding.level == "error")
    clean = "No finding: playbooks, spaces and the other knowledge files are consistent." if path is None else f"No finding in {path}."
    return {"findings": [finding.plain() for finding in findings], "errors": errors, "lines": lines or [clean]}
