"""What the documents tell a reader to type about a box of their own, typed: over SSH, to the fast box with its owner's server running."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.test_docs import SHORT, commands
from tests.e2e.fastbox import TARGET, FastBox, check_ledger
from tests.e2e.sshbox import SshBox, ssh_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BOX = list(dict.fromkeys(
    tuple(words[1:]) for _, command in commands() if (words := shlex.split(command))[:1] == ["optimize"] and "--host" in words
    and words[words.index("--host") + 1] == "box"
))  # fmt: skip


@pytest.fixture
async def there(box: FastBox) -> AsyncIterator[SshBox]:
    async with ssh_server(box) as one:
        yield SshBox(box, "tester", one.port, one.key_file, one.known_hosts, alias="box")


def test_the_documents_speak_of_a_box() -> None:
    assert {words[0] for words in BOX} == {"doctor", "diagnose", "bench", "plan", "run"}


async def test_what_only_reads_or_measures(there: SshBox) -> None:
    """Loads are shortened; where a command says how a server is started, none runs yet, and the words are this box's."""
    (there.box.here / "docs").symlink_to(Path(__file__).parents[2] / "docs")
    for words in BOX:
        if words[0] == "plan" and "--launch" in words:
            await started_as_said(there, list(words))
    there.box.serve()
    argv = there.box.serving_argv()
    for words in BOX:
        if words[0] == "run" or "--launch" in words:
            continue
        done = await asyncio.to_thread(there, *words, *(SHORT if words[0] == "bench" else ()))
        # 4 of a bench: never steady, on a busy machine
        assert done.exit == 0 or (words[0] == "bench" and done.exit == 4 and "tok/s" in done.out), (words, done.err)
        assert len(done.out.splitlines()) > 2, (words, done.out)
    assert there.box.serving_argv() == argv
    there.box.assert_clean(serving=True)


async def started_as_said(there: SshBox, words: list[str]) -> None:
    at = words.index("--launch") + 1
    if "sglang" in words[at]:
        words[at] = shlex.join(there.box.argv)
    done = await asyncio.to_thread(there, *words)
    if "sglang" in words[at]:
        assert done.exit == 0 and "launch" in done.out, done.err
    else:  # the box has no vLLM: that is said, and what to do
        assert done.exit == 4 and "does not start on box" in done.err and "Check the path" in done.err, done.err


async def test_a_study(there: SshBox) -> None:
    """The one with the most options; with a target and a load of this box, and the document's budget."""
    there.box.serve()
    shorter = list(max((words for words in BOX if words[0] == "run"), key=len))
    shorter[shorter.index("--target") + 1] = TARGET
    given = ("--study", "typed", "--workload", str(there.box.here / "w.json"), "--finish", "restore", "--yes", "--json")
    done = await asyncio.to_thread(there, *shorter, *given)
    assert done.exit == 0 and done.decision[0] == "met", done.err
    there.box.assert_clean(serving=True)
    check_ledger(there.box, "typed")
