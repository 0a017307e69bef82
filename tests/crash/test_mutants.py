"""The protocol with one promise broken at a time, in the text of the product itself: each mutant has to be caught by the check that
passes without it. A mutant whose text is no longer found fails too, so that none of them goes stale."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optimizer.box import box as box_module
from optimizer.box import program
from optimizer.box.box import Box
from optimizer.journal import Journal, lease, schema, store
from optimizer.model.entry import EntryKind
from optimizer.model.outcome import Failed
from optimizer.model.step import Level, Measure
from optimizer.runner import execute, loop
from optimizer.transport.local import LocalTransport
from tests.crash import test_protocol as protocol
from tests.unit.box.conftest import alive, home, server, until
from tests.unit.core.model_box import spec

__all__ = ["home", "server"]
Edit = tuple[str, str]


def edited(module: types.ModuleType, *edits: Edit) -> types.ModuleType:
    """The module with its text changed, under another name."""
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    return _run(module, changed(text, *edits))


def changed(text: str, *edits: Edit) -> str:
    for old, new in edits:
        assert text.count(old) == 1, f"the mutant has gone stale, {text.count(old)} times: {old!r}"
        text = text.replace(old, new)
    return text


def _run(module: types.ModuleType, text: str) -> types.ModuleType:
    mutant = types.ModuleType(f"mutant_of_{module.__name__.replace('.', '_')}")
    mutant.__dict__["__file__"] = module.__file__
    sys.modules[mutant.__name__] = mutant
    try:
        exec(compile(text, f"<{mutant.__name__}>", "exec", dont_inherit=True), mutant.__dict__)
    finally:
        del sys.modules[mutant.__name__]
    return mutant


# ---- the loop: every eighth death of a study against the box in memory ----------------------------------------------------


def dies_and_goes_on(mutant: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = protocol.study((), monkeypatch, original=False)
    expected = protocol.outcome_of(real[0])
    monkeypatch.setattr(protocol, "loop", mutant)
    monkeypatch.setattr(protocol, "drive", mutant.drive)
    for k in (None, *range(1, real[1].count + 1, 8)):
        ended, _, box = protocol.study((k,) if k else (), monkeypatch, original=False)
        protocol.check(ended, box, original=False, expected=expected)
        opened = None
        for entry in box.log.read():
            if entry.kind == EntryKind.INTENT:
                opened = entry.key
            elif entry.kind == EntryKind.OUTCOME:
                assert entry.key == opened, "an outcome that belongs to no intent"


INTENT = 'append("intent", {"step": decision.model_dump(mode="json")}, key=decision.key)'
OF_THE_LOOP: dict[str, tuple[Edit, ...]] = {
    "effect first": ((f"                {INTENT}\n", ""), ('crash_point("loop.after_effect")', f'{INTENT}; crash_point("loop.after_effect")')),
    "done again instead of settled": (("stop.guard(executor.reconcile(step)", "stop.guard(executor.execute(step)"),),
    "redone under a new key": (("stop.guard(executor.reconcile(step)", "stop.guard(_given_up()"),
                               ("async def _settle(", 'async def _given_up():\n    return Effect(Failed(cause="interrupted", message="died", retryable=True))\n\n\nasync def _settle(')),
    "an outcome twice": (('    append("outcome",', '    append("note", {})\n    append("outcome",'),
                         ("key=step.key, blobs=effect.blobs)", 'key=step.key, blobs=effect.blobs)\n    append("outcome", {"step": step.kind, "outcome": effect.outcome.model_dump(mode="json")}, key=step.key)')),
    "an outcome without its key": (("key=step.key, blobs=effect.blobs)", "blobs=effect.blobs)"),),
}  # fmt: skip


def test_the_loop_itself_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    dies_and_goes_on(edited(loop), monkeypatch)


@pytest.mark.parametrize("name", OF_THE_LOOP)
def test_a_mutant_of_the_loop_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = edited(loop, *OF_THE_LOOP[name])
    with pytest.raises(Exception):  # noqa: B017 - an assertion of the box, of the check, or a refusal of the log
        dies_and_goes_on(mutant, monkeypatch)


# ---- the box: real processes --------------------------------------------------------------------------------------------


@dataclass
class OnTheBox:
    file: str
    edits: tuple[Edit, ...]
    check: Callable[[Box, Callable[..., list[str]]], Any]


async def one_key_starts_one_server(box: Box, server: Callable[..., list[str]]) -> None:
    first = await box.launch("s", "1", server(0))
    again = await box.launch("s", "1", server(0))
    assert again.pid == first.pid, "one key started two servers"


async def a_worker_of_another_session_ends(box: Box, server: Callable[..., list[str]]) -> None:
    await _swept_with_its_worker(box, server(0, "setsid"))


async def a_stubborn_worker_ends(box: Box, server: Callable[..., list[str]]) -> None:
    await _swept_with_its_worker(box, server(0, "stubborn-worker"))


async def _swept_with_its_worker(box: Box, argv: list[str]) -> None:
    import json

    await box.launch("s", "1", argv)
    said = b""
    for _ in range(200):
        said, _ = await box.read_log("s", "1")
        if said.endswith(b"\n"):
            break
        await asyncio.sleep(0.05)
    (worker,) = json.loads(said)["workers"]
    await asyncio.sleep(0.3)  # until it has told the kernel what it ignores
    assert (await box.sweep("s", term_s=0.3, kill_s=5, gpu_wait_s=0)).clean
    assert not alive(worker), "a worker outlives the sweep"


OF_THE_BOX = {
    "no claim": OnTheBox("launch.py", (
        ("        if os.path.isdir(claim):\n            return dict(_state(folder, identifier), launched=False)\n", ""),
        ("os.mkdir(claim, 0o700)", "os.makedirs(claim, 0o700, exist_ok=True)"),
    ), one_key_starts_one_server),
    "the process group alone is ended": OnTheBox("sweep.py", (
        ("lambda: family.family_of(folder, prefix, keep)", "lambda: {pid: one for pid, one in procfs.table().items() if one.session in [led for claim in claims for led in family.sessions_of(claim)]}"),
    ), a_worker_of_another_session_ends),
    "swept once": OnTheBox("sweep.py", (("        if empty >= 2:\n", "        if empty >= 2 or told:\n"),), a_stubborn_worker_ends),
}  # fmt: skip


@pytest.mark.parametrize("broken", [False, True], ids=["real", "mutant"])
@pytest.mark.parametrize("name", OF_THE_BOX)
async def test_a_mutant_of_the_box_is_caught(name: str, broken: bool, home: Path, server: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = OF_THE_BOX[name]
    if broken:
        real = program._text
        monkeypatch.setattr(program, "_text", lambda *parts: changed(real(*parts), *mutant.edits) if parts[-1] == mutant.file else real(*parts))
        source = program.shim_program.__wrapped__()
        monkeypatch.setattr(box_module, "shim_program", lambda: source)
    transport = LocalTransport(home=home)
    transport.same_python = False  # the text is sent, which is what a mutant changes
    box = Box(transport)
    if broken:
        with pytest.raises(AssertionError):
            await mutant.check(box, server)
    else:
        await mutant.check(box, server)
        assert (await box.sweep("s", term_s=1, gpu_wait_s=0)).clean
    await until(lambda: True)


# ---- the executor -------------------------------------------------------------------------------------------------------


class Quiet:
    """A box on which everything ends at once."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answer(*_: Any, **__: Any) -> Any:
            return True

        return answer


@pytest.mark.parametrize("broken", [False, True], ids=["real", "mutant"])
async def test_a_window_that_was_cut_is_never_joined_to_another(broken: bool) -> None:
    why = 'return Effect(Failed(cause="interrupted", message=why, retryable=True))'
    module = edited(execute, (why, "return await self._measure(step)")) if broken else execute
    box: Any = Quiet()
    executor = module.LiveExecutor(box, spec(), None)
    joined = []

    async def measured(step: Measure) -> Any:
        joined.append(step.key)
        return execute.Effect(execute.Done())

    executor._measure = measured
    step = Measure(key="9", launch="8", purpose="baseline", levels=(Level(concurrency=1, warmup_min_s=1, warmup_max_s=1, window_s=1),), run_index=0)
    effect = await executor.reconcile(step)
    await executor.close()
    assert (joined == ["9"]) == broken
    assert (isinstance(effect.outcome, Failed) and effect.outcome.cause == "interrupted") != broken


# ---- the journal --------------------------------------------------------------------------------------------------------


def one_key_has_one_intent(path: Path) -> None:
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)
        for kind, body in (("intent", {}), ("outcome", {"status": "done"})):
            journal.append(kind, body, key="2", expect=journal.last_seq)
        with pytest.raises(Exception):  # noqa: B017
            journal.append("intent", {}, key="2", expect=journal.last_seq)


INDEX = "CREATE UNIQUE INDEX one_intent_one_outcome"


@pytest.mark.parametrize("broken", [False, True], ids=["real", "mutant"])
def test_without_its_unique_index_a_key_is_announced_twice(broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken:
        monkeypatch.setattr(schema, "TABLES", changed(schema.TABLES, (INDEX, INDEX.replace("UNIQUE ", ""))))
        with pytest.raises(pytest.fail.Exception):
            one_key_has_one_intent(tmp_path / "journal.db")
    else:
        one_key_has_one_intent(tmp_path / "journal.db")


@pytest.mark.parametrize("broken", [False, True], ids=["real", "mutant"])
def test_a_deferred_transaction_fails_beside_another_writer(broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, began = tmp_path / "journal.db", threading.Event()
    with Journal.create(path) as journal:
        journal.append("opened", {}, expect=0)

    def other() -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE beside (x)")
        began.set()
        time.sleep(0.4)
        connection.execute("COMMIT")
        connection.close()

    if broken:
        mutant = edited(store, ('self._connection.execute("BEGIN IMMEDIATE")', 'self._connection.execute("BEGIN")'))
    with Journal.open(path, write=True) as journal:
        if broken:
            monkeypatch.setattr(store._transaction, "__enter__", mutant._transaction.__enter__)
        thread = threading.Thread(target=other)
        thread.start()
        assert began.wait(5)
        failed = None
        try:
            journal.append("note", {}, expect=2)
        except Exception as error:
            failed = error
        thread.join()
        assert (failed is not None) == broken, failed


def a_lease_follows_its_process(module: types.ModuleType) -> None:
    mine = module.this_process(1, "2020-01-01T00:00:00Z")
    assert mine.alive, "a living writer lost its lease for being old"
    gone = mine.model_copy(update={"pid_start": "1", "at_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    assert not gone.alive, "a dead writer keeps its lease for being young"


def test_a_lease_that_goes_by_the_clock_is_caught() -> None:
    a_lease_follows_its_process(lease)
    clock = 'import calendar, time; return time.time() - calendar.timegm(time.strptime(self.at_utc[:19], "%Y-%m-%dT%H:%M:%S")) < 60'
    mutant = edited(lease, ("return process_start(self.pid) == self.pid_start", clock))
    with pytest.raises(AssertionError):
        a_lease_follows_its_process(mutant)


def test_there_are_at_least_ten_of_them() -> None:
    assert len(OF_THE_LOOP) + len(OF_THE_BOX) + len(("half window", "no unique index", "deferred BEGIN", "lease by clock")) == 12
