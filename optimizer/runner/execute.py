"""The live executor: turns each step into operations on the box, and whatever happens into an outcome. It decides nothing;
it raises only for defects and for what a person must settle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optimizer.box.box import Box, MemberLaunch
from optimizer.box.results import GuardFired, PortTaken, ServerProcess, ShimRefused
from optimizer.core.ledger import STARTUP_FACTS
from optimizer.endpoint.client import Endpoint
from optimizer.engines.base import Command, Engine, Mismatch
from optimizer.engines.members import MemberCommand, commands
from optimizer.engines.registry import engine
from optimizer.errors import BoxError, EngineError, LinkLost, NeedsOperator, OptimizerError
from optimizer.evidence.bundle import bundle_from_files
from optimizer.evidence.exits import exit_class
from optimizer.knowledge.library import Library
from optimizer.model.entry import Entry, EntryKind
from optimizer.model.evidence import Evidence
from optimizer.model.outcome import Cause, Done, Failed, Outcome, Unknown
from optimizer.model.settings import Settings
from optimizer.model.step import (
    ORIGINAL,
    STEP,
    AwaitReady,
    Calibrate,
    Check,
    Launch,
    Measure,
    Observe,
    Propose,
    Restore,
    Secure,
    Step,
    Stop,
)
from optimizer.model.study import StudySpec
from optimizer.redact import mark
from optimizer.runner.base import Effect
from optimizer.runner.calibrating import calibrate
from optimizer.runner.checking import Bench, check
from optimizer.runner.collecting import launch_log
from optimizer.runner.context import Served, Session, Worker
from optimizer.runner.deployment import ROUTER_READY
from optimizer.runner.killed import KILLED_BY, Kills, sent
from optimizer.runner.measure import measure, members_before, pool_against_before
from optimizer.runner.survey import launch_json, survey

# A start whose log stands still for this long is a hang; weights of hundreds of GiB load in silence for minutes.
SILENT_START_S = 900.0
HURRY_S = 10.0  # how long somebody is kept waiting who has pressed Ctrl-C twice
GENERATION_S = 120.0  # the first request through a router may compile kernels on both sides
PROGRESS = Callable[[str], None]
END_BYTES = 1 << 20  # of a log, where the reason of an end stands
_REDACTED = re.compile(r"«redacted:[0-9a-f]{8}»")


class LiveExecutor:
    """Executes steps on one box. ``time_scale``: how much faster the (simulated) server's clock runs than ours."""

    def __init__(self, box: Box, spec: StudySpec, library: Library, progress: PROGRESS | None = None) -> None:
        self.box = box
        self.spec = spec
        self.library = library
        self.session = Session()
        self.progress = progress or (lambda text: None)
        self.guard_lost: Callable[[str], None] = lambda why: None
        self.box_unfit: Callable[[str], None] = lambda why: None  # nothing can be measured there before a person has done something
        self._disk_full = 0  # launches in a row that failed for want of room
        self._heart: asyncio.Task[None] | None = None
        self._hurried = False
        self._kills = Kills(box)
        self._begun_before: set[str] = set()  # launches that a process before this one started, nobody here knows when
        self._rejoin_epoch: int | None = None  # a box that a dead predecessor secured, not yet ours again

    # ---- a resumed process learns what its predecessor knew -------------------------------------------------------

    def remember(self, entries: Sequence[Entry], blob: Callable[[str], bytes]) -> None:
        """Rebuild the session from the journal."""
        measured: Measure | None = None
        for entry in entries:
            if entry.kind == EntryKind.INTENT:
                step = STEP.validate_python(entry.body["step"])
                if isinstance(step, Launch):
                    self.session.launches[step.key] = step
                    self._begun_before.add(step.key)
                measured = step if isinstance(step, Measure) else None
            elif entry.kind == EntryKind.OUTCOME and KILLED_BY in entry.body["outcome"].get("body", {}):
                self._kills.excused.update([one.settings.digest for one in self.session.launches.values()][-1:])
            elif entry.kind == EntryKind.OUTCOME and entry.body["outcome"]["status"] == "done":
                body = entry.body["outcome"]["body"]
                if entry.body["step"] == "observe":
                    files = {name: blob(sha) for name, sha in entry.body.get("blobs", {}).items()}
                    self.session.adopt(body, files)
                elif entry.body["step"] == "secure":
                    self._rejoin_epoch = int(body["epoch"]) if body.get("armed") else None
                elif entry.body["step"] == "await_ready":
                    self.session.ready_s[str(body.get("launch"))] = float(body.get("ready_s", 0.0))
                elif entry.body["step"] == "measure" and measured is not None:
                    known = self.session.launches.get(measured.launch)
                    evidence = Evidence.model_validate(body.get("evidence", {}))
                    pool_against_before(self.session, known.settings if known else Settings(), evidence)
                    members_before(self.session, evidence)

    @property
    def adapter(self) -> Engine:
        return engine(self.session.known.engine)

    # ---- executor protocol ------------------------------------------------------------------------------------------

    async def execute(self, step: Step) -> Effect:
        return await self._timed(step, self._execute)

    async def reconcile(self, step: Step) -> Effect:
        """How ``step`` ended whose outcome was never written. Every branch is idempotent under the step's key."""
        return await self._timed(step, self._reconcile)

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        await self.box.close()

    async def hurry(self) -> None:
        """Somebody will not wait for the box to be closed in order: the guard there is told to take our launches down and to bring the
        original back, which it does without us. Returns when it has, or when no guard is there; raises NeedsOperator when it is still
        at work after ``HURRY_S``."""
        name, study = self.spec.host.name, self.spec.study
        self._hurried = True
        if self._heart is not None:
            self._heart.cancel()
        order = asyncio.ensure_future(self._order_restore())
        try:
            if not await asyncio.shield(order):
                return
            await self.box.guard_ended(study, HURRY_S)
        except (BoxError, NeedsOperator, asyncio.CancelledError) as error:
            told = False
            with contextlib.suppress(BoxError):
                told = await order  # whoever does not wait for the guard still waits until it is told
            when = "at once" if told else f"within {self.spec.guard_minutes:g} minutes"
            raise NeedsOperator(
                f"Nobody waits for {name} any more: the guard there takes our server down and brings the original back by itself, {when}.",
                why="Until then the box belongs to its guard, and the study cannot go on there.",
                hint=f"`optimize stop {study}` waits until it has, and closes the study.",
            ) from error

    async def _order_restore(self) -> bool:
        """Tells the guard to restore; False when there is none."""
        if (await self.box.guard_status(self.spec.study)).guard is None:
            return False
        await self.box.fire(self.spec.study)
        return True

    async def _timed(self, step: Step, work: Callable[[Step], Any]) -> Effect:
        began = time.monotonic()
        try:
            await self._rejoin(step)
            effect: Effect = await work(step)
        except LinkLost as lost:
            effect = Effect(Unknown(reason=lost.message))
            await asyncio.sleep(1.0)
        except GuardFired as fired:
            self.guard_lost(fired.message)
            effect = Effect(Failed(cause="guard_fired", message=fired.message))
        except (BoxError, EngineError) as error:
            effect = Effect(Failed(cause="refused_by_box", message=str(error), retryable=error.retryable))
        if isinstance(effect.outcome, Failed) and isinstance(step, AwaitReady | Measure) and (launch := self.session.launches.get(step.launch)):
            effect = Effect(await self._kills.judged(effect.outcome, launch.key, launch.settings.digest), effect.blobs)
        took = self._server_seconds(effect.outcome, time.monotonic() - began)
        outcome: Outcome = effect.outcome.model_copy(update={"duration_s": took})
        return Effect(outcome, effect.blobs)

    async def _rejoin(self, step: Step) -> None:
        """Before a resumed study touches a secured box: take the lock over from the dead process, and let the guard hear
        from us again. Raises GuardFired where the box is not as it was left: the guard waited for too long, or somebody
        restored it by hand or restarted it. What ran there is gone then, and says nothing about the settings."""
        if self._rejoin_epoch is None:
            return
        study = self.spec.study
        await self.box.lock(study)
        status = await self.box.guard_status(study)
        if status.fired is not None and status.fired.reason != "asked":
            self._rejoin_epoch = None
            raise GuardFired("The guard on the box has fired while nobody drove this study: it restored the original server.")
        ending = isinstance(step, Restore) or (isinstance(step, Secure) and step.op == "disarm")  # both end the guard
        if status.guard is None and not ending:
            self._rejoin_epoch = None
            raise GuardFired("The guard on the box is gone: it was restored by hand or restarted while nobody drove this study.")
        self.box.epoch, self._rejoin_epoch = self._rejoin_epoch, None
        self._heartbeat()

    def _server_seconds(self, outcome: Outcome, took_s: float) -> float:
        """Time that a step cost the box. On a simulated one only the server's own clock runs faster, not our handling of it."""
        if self.spec.time_scale == 1.0:
            return round(took_s, 3)
        body = outcome.body if isinstance(outcome, Done | Failed) else {}
        points = [*body.get("measurement", {}).get("points", []), *body.get("points", [])]
        simulated = sum(point["warmup_s"] + point["window_s"] for point in points) + float(body.get("ready_s", 0.0))
        return float(round(max(simulated, took_s), 3))

    async def _execute(self, step: Step) -> Effect:
        match step:
            case Observe():
                return await self._observe()
            case Secure():
                return await self._secure(step)
            case Calibrate():
                return await self._calibrate(step)
            case Launch():
                return await self._launch(step)
            case AwaitReady():
                return await self._await_ready(step)
            case Measure():
                return await self._measure(step)
            case Check():
                return await self._check(step)
            case Stop():
                return await self._stop(step)
            case Propose():
                return await self._propose(step)
            case Restore():
                return await self._restore()

    async def _reconcile(self, step: Step) -> Effect:
        match step:
            case Launch():
                self.session.launches[step.key] = step
                state = await self.box.state(self.spec.study, step.key)
                if state.alive:
                    self._begun_before.add(step.key)
                    self._heartbeat()
                    return Effect(Done(body={"pid": state.pid, "adopted": True}))
                if state.state == "dead":
                    log = await launch_log(self.box, self.spec.study, step.key)
                    failure = self._exit_of(log, state.exit_code, "died_at_launch")
                    await self.box.sweep(f"{self.spec.study}:{step.key}")
                    return Effect(failure.model_copy(update={"body": {"spawned": False}}), {"server.log": log})
                self._heartbeat()
                return await self._launch(step)
            case Measure():
                # A partial window is never joined to another one.
                await self.box.sweep(f"{self.spec.study}:{step.key}-load")
                self._heartbeat()
                why = "The measurement was interrupted; its window is discarded."
                return Effect(Failed(cause="interrupted", message=why, retryable=True))
            case Check():
                await self.box.sweep(f"{self.spec.study}:{step.key}", term_s=2, gpu_wait_s=0)
                self._heartbeat()
                return Effect(Failed(cause="interrupted", message="The test was interrupted; it is not made again on this server."))
            case Secure(op="arm"):
                status = await self.box.guard_status(self.spec.study)
                if status.fired is None:
                    return await self._secure(step)
                # It was armed, nobody wrote that down, and it fired. Nothing was changed since, so nothing of ours may stay, except
                # what brings the original back where the guard could not.
                if status.fired.clean and status.fired.restored is not False:
                    await self._given_back()
                self.guard_lost("The guard on the box has fired while nobody drove this study.")
                return Effect(Failed(cause="guard_fired", message=status.fired.message or "The guard has restored the box."))
            case _:
                return await self._execute(step)

    # ---- steps ------------------------------------------------------------------------------------------------------

    async def _observe(self) -> Effect:
        effect = await survey(self.box, self.spec)
        if isinstance(effect.outcome, Done):
            self.session.adopt(effect.outcome.body, effect.blobs)
        return effect

    async def _secure(self, step: Secure) -> Effect:
        study = self.spec.study
        if step.op == "disarm":
            if self._heart is not None:
                self._heart.cancel()
                self._heart = None
            if step.keep is None:
                # A load generator whose link broke may not have noticed yet, and a lost launch may have come up late.
                await self.box.sweep(study)
            revived = await self._revived() if step.keep is None else {}
            fired = (await self.box.disarm(study)).fired
            if step.keep is not None and fired is not None and not fired.done:
                raise GuardFired(f"The guard on the box fired, and could not restore it: {fired.message}")
            kept = step.keep is not None and fired is None  # what was to go on is gone where the guard was quicker
            await self.box.cleanup(study, leave_running=kept)
            await self.box.unlock(study)
            return Effect(Done(body={"armed": False, **revived, **({"guard_restored": True} if step.keep is not None and not kept else {})}))
        await self.box.lock(study)
        status = await self.box.guard_status(study)
        epoch = (status.fenced_epoch or 0) + 1
        try:
            guard = await self.box.secure(study, with_described_secrets(self.session.known.original), step.minutes, epoch=epoch)
        except ShimRefused:
            # Nothing was changed, so nothing may stay: a box without a guard is not held either.
            await self._given_back()
            raise
        self._heartbeat()
        return Effect(Done(body={"armed": True, "guard_pid": guard.pid, "epoch": epoch, "minutes": guard.minutes}))

    async def _given_back(self) -> None:
        study = self.spec.study
        await self.box.sweep(study, keep_guard=False)
        await self.box.cleanup(study)
        await self.box.unlock(study)

    def _heartbeat(self) -> None:
        """The guard hears from us beside whatever step is running; losing it is the guard's business, not the journal's."""
        if not self._hurried and (self._heart is None or self._heart.done()):
            self._heart = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        beat = time.time_ns()  # none that a process before this one has sent, also when the clock was set back
        while True:
            try:
                if not await self.box.heartbeat(self.spec.study, beat):
                    self.guard_lost("The guard on the box has fired: it restored the original server.")
                    return
            except ShimRefused as refused:
                if refused.kind == "restarted":
                    self.box_unfit(refused.message)
                    return
            except (LinkLost, BoxError):
                pass  # the next beat tries again; if none arrives, the guard does what it is there for
            beat += 1
            await asyncio.sleep(min(30.0, self.spec.guard_minutes * 60 / 5))

    async def _calibrate(self, step: Calibrate) -> Effect:
        return await calibrate(self.box, f"{self.spec.study}:{step.key}-null", chunks_per_s=step.tokens_per_s, concurrency=step.concurrency)

    def commands_of(self, step: Launch) -> tuple[MemberCommand, ...]:
        """Those of every member of a deployment; none for a single server. Pure."""
        context = self.session.known
        return commands(self.adapter, context.launch, step.settings, port=self._port(step), served_name=step.served_name, flags=self.session.flags)

    def command_of(self, step: Launch) -> Command:
        """The command line and environment changes of a launch, of a deployment those of its leading worker. Pure."""
        context = self.session.known
        for one in self.commands_of(step):
            if one.member.name == context.launch.leading:
                return Command(argv=one.argv, env=one.env)
        return self.adapter.command(
            context.launch.argv,
            context.launch.env,
            Settings(),
            step.settings,
            port=None if step.served_name is None else step.port,
            served_name=step.served_name,
            flags=self.session.flags,
        )

    async def _launch(self, step: Launch) -> Effect:
        self.session.launches[step.key] = step
        self._begun_before.discard(step.key)
        context, study = self.session.known, self.spec.study
        command = self.command_of(step)
        argv, env = with_secrets(command.argv, {**context.launch.env, **command.env}, os.environ)
        port, members = self._port(step), self.commands_of(step)
        await self._kills.begin(step.key)
        try:
            if members:
                launched = await self.box.launch_deployment(study, step.key, self._members(members), keep_log=step.purpose == "final")
            else:
                launched = await self.box.launch(study, step.key, argv, env, context.launch.cwd, port, base="guard",
                                                 keep_log=step.purpose == "final")  # fmt: skip
        except PortTaken as taken:
            return Effect(Failed(cause="port_busy", message=taken.message, retryable=True, body={"spawned": False}))
        except ShimRefused as refused:
            if refused.kind == "restarted":
                self.box_unfit(refused.message)
            full = refused.kind == "disk_full"
            if full:
                self._no_room(refused.message)
            cause: Cause = "disk_full" if full else "refused_by_box"
            return Effect(Failed(cause=cause, message=str(refused), retryable=full, body={"spawned": False}))
        body: dict[str, Any] = {"pid": launched.pid, "start_time": launched.start_time, "log": launched.log, "port": port, "argv": list(command.argv),
                "env": command.env}  # fmt: skip
        if members:
            body["members"] = [{"name": one.member.name, "port": one.port, "argv": list(one.argv), "env": one.env} for one in members]
        return Effect(Done(body=body))

    def _members(self, members: Sequence[MemberCommand]) -> list[MemberLaunch]:
        """As the box starts them: each from the environment of the process of the original that has the same part."""
        original, found = self.session.known.original, []
        for number, one in enumerate(members):
            argv, env = with_secrets(one.argv, {**one.member.env, **one.env}, os.environ)
            base = f"guard:{number}" if original is not None and number < len(original.before) else "guard"
            ready = self.adapter.ready(one.port)
            paths = ROUTER_READY if one.member.role == "router" else (ready.probe.path,)
            found.append(MemberLaunch(name=one.member.name, role=one.member.role, port=one.port, argv=argv, env=env, cwd=one.member.cwd, base=base,
                                      paths=paths, timeout_s=ready.timeout_s))  # fmt: skip
        return found

    def _port(self, step: Launch) -> int:
        return self.session.known.original_port if step.served_name is None else step.port

    async def _await_ready(self, step: AwaitReady) -> Effect:
        launch, study, scale = self.session.launches[step.launch], self.spec.study, self.spec.time_scale
        port = self._port(launch)
        began = last_growth = time.monotonic()
        offset, pause_s = 0, 0.3 if scale > 1 else 1.0
        host, here = await self.box.forward(port)
        ready = self.adapter.ready(here, host)
        async with Endpoint(ready.base_url) as endpoint:
            while True:
                state = await self.box.state(study, step.launch)
                if not state.alive:
                    log = await launch_log(self.box, study, step.launch)
                    return Effect(self._exit_of(log, state.exit_code, "exited", signal=state.exit_signal), {"server.log": log})
                data, offset = await self.box.read_log(study, step.launch, offset)
                now = time.monotonic()
                if data:
                    last_growth = now
                    self.progress(_last_line(data))
                if self.session.known.launch.members:  # the box asks each of them
                    if len(state.members) == len(self.session.known.launch.members) and all(one.ready_s is not None for one in state.members):
                        break
                elif (await endpoint.get_text(ready.probe.path, timeout_s=ready.timeout_s)).status in ready.probe.ok:
                    break
                if (now - began) * scale > step.deadline_s or now - last_growth > SILENT_START_S:
                    log = await launch_log(self.box, study, step.launch)
                    cause: Cause = "hang_loading" if now - last_growth > SILENT_START_S else "not_ready_in_time"
                    late = [one for one in state.members if one.pid is not None and one.ready_s is None]
                    who = " and ".join(f"{one.name} (port {one.port})" for one in late) or "It"
                    why = f"{who} {'were' if len(late) > 1 else 'was'} not ready after {(now - began) * scale:.0f} s."
                    logs = {f"{one.name}.server.log": await launch_log(self.box, study, step.launch, one.name) for one in late}
                    return Effect(Failed(cause=cause, message=why), {"server.log": log, **logs})
                await asyncio.sleep(pause_s)
            ready_s = round((time.monotonic() - began) * scale, 1)
        self._disk_full = 0
        # Health is answered to anybody; what proves who answers may ask for the key of this launch.
        served = self._served(step.launch)
        async with Endpoint(ready.base_url, api_key=await self.box.learn_key(port, served.leading.port)) as endpoint:
            return await self._prove(step, launch, endpoint, served, ready_s)

    async def _prove(self, step: AwaitReady, launch: Launch, endpoint: Endpoint, served: Served, ready_s: float) -> Effect:
        """Identity: one listener on each port and it is ours, the served name, the settings that every worker reads back."""
        port = served.port
        for taken in dict.fromkeys((port, *(worker.port for worker in served.workers))):
            listeners = await self.box.listeners(taken, f"{self.spec.study}:{step.launch}")
            if not listeners.only_ours:
                who = ", ".join(f"{one.address} (processes {list(one.pids)})" for one in listeners.listeners) or "nobody"
                return Effect(Failed(cause="wrong_server", message=f"Port {taken} is not held by our launch alone: {who}.", retryable=True))
        name = launch.served_name or self.session.known.served_model
        names = list(await endpoint.served_models() or ())
        if name not in names:
            return Effect(Failed(cause="wrong_server", message=f"The server on port {port} serves {names}, not {name!r}.", retryable=True))
        if served.leading.name is not None:  # workers that cannot reach one another are healthy each by itself
            answer = await endpoint.generate(name or "", "Hello", 2, GENERATION_S)
            if not answer.ok:
                why = f"Every member is ready, and a request through the router on port {port} failed: {answer.error or f'status {answer.status}'}."
                return Effect(Failed(cause="unresponsive", message=why), {"server.log": await launch_log(self.box, self.spec.study, step.launch)})
        log = await launch_log(self.box, self.spec.study, step.launch, served.leading.name)
        mismatches = [item for worker in served.workers for item in await self._obeyed(step.launch, worker)]
        body: dict[str, Any] = {"launch": step.launch, "ready_s": ready_s, "names": names,
                                "mismatches": [item.plain() for item in mismatches]}  # fmt: skip
        if step.launch in self._begun_before:
            body["began_before"] = True  # ready_s is what was left of its start
        self.session.ready_s[step.launch] = ready_s
        if mismatches:
            said = "; ".join(f"{item.param} was asked to be {item.wanted!r}, the server uses {item.effective!r} ({item.where})" for item in mismatches)
            return Effect(Failed(cause="setting_not_effective", message=said, body=body), {"server.log": log})
        if launch.purpose == "candidate":  # what it said while it started may already rule its idea out
            document = launch_json(self.session.known, step.launch, (), {}, ready=True, start_s=ready_s)
            found = bundle_from_files({"launch.json": document, "server.log": log}).evidence
            body["startup"] = Evidence(facts=tuple(fact for fact in found.facts if fact.name in STARTUP_FACTS or fact.name == "startup.fallback")).plain()
        return Effect(Done(body=body))

    async def _obeyed(self, key: str, worker: Worker) -> list[Mismatch]:
        """What this worker makes of the settings that are its own, where that is not what was asked."""
        log = await launch_log(self.box, self.spec.study, key, worker.name)
        host, here = await self.box.forward(worker.port)
        async with Endpoint(self.adapter.ready(here, host).base_url, api_key=self.box.api_key) as endpoint:
            found = self.adapter.check_readback(worker.settings.values, await self._effective(endpoint, log))
        where = f"{worker.name}: " if worker.name else ""
        return [item.model_copy(update={"where": where + item.where}) for item in found]

    async def _effective(self, endpoint: Endpoint, log: bytes) -> Mapping[str, Any]:
        info: Any = None
        for path in self.adapter.server_info_paths:
            answer = await endpoint.get_json(path)
            if answer.ok:
                info = answer.value
                break
        return self.adapter.readback(info if isinstance(info, dict) else None, None, log.decode("utf-8", "replace"))

    def _served(self, launch_key: str) -> Served:
        """The server that was found, or a launch of ours."""
        context = self.session.known
        if launch_key == ORIGINAL:
            launch, name = Launch(key=ORIGINAL, settings=Settings(), purpose="baseline", port=0, served_name=None), context.served_model
        else:
            launch = self.session.launches[launch_key]
            name = launch.served_name or context.served_model
        port, members = self._port(launch), self.commands_of(launch)
        if not members:
            command = self.command_of(launch)
            env: dict[str, str | None] = {**context.launch.env, **command.env}
            whole = Worker(name=None, role="server", port=port, argv=command.argv, env=env, settings=launch.settings)
            return Served(port=port, model=name or "", workers=(whole,))
        workers = [
            Worker(name=one.member.name, role=one.member.role, port=one.port, argv=one.argv, env={**one.member.env, **one.env}, settings=one.settings)
            for one in members if one.member.role != "router"
        ]  # fmt: skip
        workers.sort(key=lambda worker: worker.name != context.launch.leading)
        return Served(port=port, model=name or "", workers=tuple(workers))

    async def _check(self, step: Check) -> Effect:
        return await check(Bench(self.box, self.spec, self.session, self.adapter, step, served=self._served(step.launch), progress=self.progress))

    async def _measure(self, step: Measure) -> Effect:
        served = self._served(step.launch)
        if step.launch == ORIGINAL and self.box.api_key is None:  # a resumed process did not see its survey
            await self.box.learn_key(served.port, served.leading.port)
        effect = await measure(self.box, self.spec, self.session, self.adapter, step, served=served, progress=self.progress, classify=self._exit_of)
        if step.launch == ORIGINAL and (why := await self._why_gone()):
            self.box_unfit(f"{why} It is started again as it ran before; look at why it ended before you measure it again.")
            return Effect(Failed(cause="original_gone", message=why), effect.blobs)
        return effect

    async def _why_gone(self) -> str:
        """What became of the original where a process of it has ended while nobody of us has stopped it; else nothing."""
        original = self.session.known.original
        for one in original.processes if original is not None else ():
            if not await self.box.family(one.pid, one.start_time):
                log = (await self.box.read_file(one.logs[0], -END_BYTES)).data if one.logs else b""
                _, message, line = exit_class(log, None)
                return f"The original server (process {one.pid}) ended while it was measured{f': {message}' if line else '.'}"
        return ""

    async def _revived(self) -> dict[str, Any]:
        """Before the guard that holds the original goes: one that nobody of us has stopped and that ended all the same is brought back."""
        status = await self.box.guard_status(self.spec.study)
        held = status.guard.original if status.guard is not None and status.fired is None else None
        if held is None or all([await self.box.family(one.pid, one.start_time) for one in (*held.before, held)]):
            return {}
        return {"original_restarted": (await self.box.restore_original(self.spec.study)).pid}

    async def _stop(self, step: Stop) -> Effect:
        context = self.session.known
        if step.launch == ORIGINAL:
            if not self.spec.consent:
                return Effect(Failed(cause="refused_by_box", message="The running server is not stopped without consent (--yes)."))
            if context.original is not None:
                stopped = await self.box.stop_original(self.spec.study, context.original)
                if stopped.remaining:
                    return Effect(Failed(cause="gpu_memory_stuck", message=f"Processes {list(stopped.remaining)} do not end.", retryable=True))
            return Effect(Done(body={"original": True}))
        swept = await self.box.sweep(f"{self.spec.study}:{step.launch}")
        if not swept.clean:
            left = f"processes {list(swept.remaining)}" if swept.remaining else "GPU memory"
            return Effect(Failed(cause="gpu_memory_stuck", message=f"After the stop {left} of launch {step.launch} remain.", retryable=True))
        return Effect(Done(body={"swept": len(swept.swept)}))

    async def _propose(self, step: Propose) -> Effect:
        from optimizer.search.answer import answered  # optuna takes seconds to import; most studies never ask it

        space = self.library.space(step.space)
        directions = tuple(one for one in self.library.directions if one.engine in ("any", space.engine))
        try:
            body = await asyncio.to_thread(answered, step, space, directions)
        except OptimizerError as error:
            return Effect(Failed(cause="proposal_failed", message=str(error)))
        return Effect(Done(body=body))

    async def _restore(self) -> Effect:
        restored = await self.box.restore_original(self.spec.study)
        return Effect(Done(body={"pid": restored.pid, "log": restored.log, "by_guard": restored.by_guard}))

    def _no_room(self, why: str) -> None:
        """A full disk says nothing about settings: one launch may have met it by chance, the second in a row has not."""
        self._disk_full += 1
        if self._disk_full > 1:
            self.box_unfit(f"{why} Two launches in a row had no room on the disk of {self.spec.host.name}, whatever their settings.")

    def _exit_of(self, log: bytes, code: int | None, fallback: Cause, *, signal: int | None = None) -> Failed:
        """Why a launch ended, from its last lines."""
        cause, message, line = exit_class(log[-END_BYTES:], code if code is not None else (-signal if signal else None))
        if cause == "disk_full":
            self._no_room(message or "A server found no room on the disk.")
        where = "" if not line else f" (line {line} of its log)" if len(log) <= END_BYTES else f" (line {line} of the last MiB of its log)"
        infrastructure = cause in ("port_busy", "disk_full", "host_fault")
        number = None if line or infrastructure else sent(code, signal)
        return Failed(cause=cause or fallback, message=(message or f"The server ended with code {code}.") + where, retryable=infrastructure,
                      body={KILLED_BY: number} if number else {})  # fmt: skip


def with_secrets(
    argv: Sequence[str], env: Mapping[str, str | None], surroundings: Mapping[str, str]
) -> tuple[list[str], dict[str, str | None]]:
    """A resumed process read the launch command from the journal, which holds no secrets: they are found again in its own
    environment by their digests. Raises NeedsOperator naming what is missing: a launch with a placeholder would be another server."""
    spelled = [*argv, *(value for value in env.values() if value is not None)]
    if not any("«redacted:" in word for word in spelled):
        return list(argv), dict(env)
    values = {mark(value): value for value in surroundings.values() if value}
    missing: list[str] = []

    def revealed(word: str, name: str) -> str:
        found = _REDACTED.sub(lambda match: values.get(match[0], match[0]), word)
        if "«redacted:" in found:
            missing.append(name)
        return found

    words = [revealed(word, argv[index - 1] if index and argv[index - 1].startswith("-") else word.partition("=")[0]) for index, word in enumerate(argv)]
    changes = {name: revealed(value, name) if value is not None else None for name, value in env.items()}
    if missing:
        raise NeedsOperator(
            f"The study was started with secrets that its journal does not hold ({', '.join(missing)}), so this process cannot launch the same server.",
            why="A server without them would be another one, or none.",
            hint="Put them into the environment under any name and resume: SECRET=... optimize resume STUDY",
        )
    return words, changes


def with_described_secrets(original: ServerProcess | None) -> ServerProcess | None:
    """An original whose command lines can be started again. Those that the user described were written down without their secrets."""
    if original is None or not any(one.described for one in original.processes):
        return original
    parts = []
    for one in original.processes:
        argv, env = with_secrets(one.argv, one.env, os.environ) if one.described else (one.argv, one.env)
        parts.append(one.model_copy(update={"argv": tuple(argv), "env": {name: value for name, value in env.items() if value is not None}, "before": ()}))
    return parts[-1].model_copy(update={"before": tuple(parts[:-1])})


def _last_line(data: bytes) -> str:
    lines = [line for line in data.replace(b"\r", b"\n").split(b"\n") if line.strip()]
    return lines[-1].decode("utf-8", "replace")[-200:] if lines else ""


def knowledge_blob(library: Library) -> bytes:
    """The pinned texts of every knowledge file, as one attachment."""
    return json.dumps(dict(library.files), sort_keys=True, ensure_ascii=False).encode()
