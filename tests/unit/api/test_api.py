"""The product as a library, and as tools of a coding agent that speaks the real protocol to a real server process."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

import optimizer
from optimizer.errors import OptimizerError, UsageError

ROOT = Path(__file__).parents[3]
CASE = next(path for path in sorted((ROOT / "tests/incidents").rglob("*.json")) if "case" in path.name or path.parent.name == "cases")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(ROOT / "tests/histories/h200-7b-eager", folder / "real")
    return folder


def test_every_name_of_the_library_is_there_and_importing_it_loads_nothing() -> None:
    assert all(callable(getattr(optimizer, name)) for name in optimizer.__all__)
    code = "import sys, optimizer; print(sorted(m for m in sys.modules if m.startswith(('optimizer.', 'pydantic', 'optuna', 'httpx'))))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    with pytest.raises(AttributeError):
        optimizer.nothing_of_the_kind  # noqa: B018


def test_documents_are_those_of_the_commands(runs: Path) -> None:
    assert [row["study"] for row in optimizer.studies(runs=runs)] == ["real"]
    entries = optimizer.story("real", runs=runs)["entries"]
    promoted = next(row["seq"] for row in entries if row["kind"] == "promoted")
    assert "×" in optimizer.why("real", promoted, runs=runs)["text"]
    assert optimizer.why_not("real", "--disable-cuda-graph", runs=runs)["text"]
    assert optimizer.report_document("real", runs=runs)["ending"] == "met"
    assert optimizer.compare("real", "real", runs=runs)["speed"]["verdict"] == "cannot tell"
    assert optimizer.diagnose(evidence=[CASE])["hypotheses"] is not None
    assert optimizer.plan("sim:h200-7b", "1000tps@16", runs=runs)["engine"] == "sglang"
    assert optimizer.doctor("sim:h200-7b", runs=runs)["verdict"] == "ok"


def test_what_is_wrong_is_an_error_of_the_library(runs: Path) -> None:
    with pytest.raises(UsageError):
        optimizer.diagnose()
    with pytest.raises(UsageError):
        optimizer.story("nope", runs=runs)
    with pytest.raises(OptimizerError):
        optimizer.run("sim:nope", "1000tps", runs=runs)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: optimizer.run(None, "x"), "optimizer.run: host is a name"),  # type: ignore[arg-type]
        (lambda: optimizer.plan("sim:h200-7b", 100), "optimizer.plan: target is text"),  # type: ignore[arg-type]
        (lambda: optimizer.why("real", None), "optimizer.why: what is an entry's number"),  # type: ignore[arg-type]
        (lambda: optimizer.why_not("real", 3), "optimizer.why_not: setting is"),  # type: ignore[arg-type]
        (lambda: optimizer.diagnose(evidence=3), "optimizer.diagnose: evidence is"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_kind_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        call()


def test_evidence_may_be_one_path() -> None:
    assert optimizer.diagnose(evidence=CASE)["hypotheses"] == optimizer.diagnose(evidence=[str(CASE)])["hypotheses"]


async def test_inside_a_running_loop_it_says_how_to_call_it(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"running event loop") as error:
        optimizer.plan("sim:h200-7b", runs=runs)
    assert "asyncio.to_thread(optimizer.plan" in error.value.hint
    assert optimizer.story("real", runs=runs)["entries"]  # it needs no loop


@asynccontextmanager
async def session(runs: Path, *options: str) -> AsyncIterator[ClientSession]:
    words = ["-m", "optimizer", "--runs", str(runs), "mcp", *options]
    async with stdio_client(StdioServerParameters(command=sys.executable, args=words, cwd=str(ROOT))) as (read, write), ClientSession(read, write) as one:
        await one.initialize()
        yield one


async def ask(one: ClientSession, tool: str, **arguments: Any) -> tuple[bool, Any]:
    """(failed, document or message)"""
    result = await one.call_tool(tool, arguments)
    text = result.content[0].text  # type: ignore[union-attr]
    failed = bool(getattr(result, "is_error", None) or getattr(result, "isError", None))
    return failed, text if failed else json.loads(text)


async def test_an_agent_asks_the_journal(runs: Path) -> None:
    async with session(runs) as one:
        tools = {tool.name: tool for tool in (await one.list_tools()).tools}
        assert set(tools) == {"diagnose", "doctor", "plan", "studies", "journal", "why", "why_not"}  # nothing that acts
        for tool in tools.values():
            marks = tool.annotations
            assert marks is not None and (getattr(marks, "read_only_hint", None) or getattr(marks, "readOnlyHint", None))
        failed, found = await ask(one, "journal", study="real")
        assert not failed and any("judged" in row["kind"] or row["kind"] == "promoted" for row in found["entries"])
        failed, found = await ask(one, "why_not", study="real", setting="max_running_requests")
        assert not failed and found["text"]
        failed, said = await ask(one, "journal", study="../../etc")
        assert failed and "no study name" in said
        failed, found = await ask(one, "diagnose", evidence=str(CASE))
        assert not failed and found["hypotheses"]


async def test_an_agent_is_told_what_is_wrong_with_its_arguments(runs: Path) -> None:
    """By name, with what was done (nothing) and what the tool takes; no address of a validator's manual."""
    wrong: dict[str, tuple[str, dict[str, Any], str]] = {
        "missing": ("why", {}, "study is missing"),
        "no number": ("why", {"study": "real", "seq": "twenty"}, 'seq is "twenty": input should be a valid integer'),
        "unknown": ("why_not", {"study": "real", "seting": "x"}, "seting is none of its arguments"),
        "no tool": ("tune", {}, "There is no tool 'tune'"),
        "both": ("why", {"study": "real", "seq": 1, "setting": "x"}, "either seq"),
    }
    async with session(runs) as one:
        for name, (tool, arguments, expected) in wrong.items():
            failed, said = await ask(one, tool, **arguments)
            assert failed and expected in said and "pydantic" not in said, (name, said)
        failed, said = await ask(one, "why", study="nope", seq=1)
    assert failed and "There is no study" in said and said.endswith("Studies: real")


async def test_acting_needs_the_person_who_starts_the_server_and_a_confirmation(runs: Path) -> None:
    async with session(runs, "--allow-run") as one:
        assert "run" in {tool.name for tool in (await one.list_tools()).tools}
        failed, said = await ask(one, "run", host="sim:h200-7b", target="1000tps@16", confirm="yes")
        assert failed and "must repeat the host's name" in said
        failed, said = await ask(one, "run", host="sim:nope", target="1000tps@16", confirm="sim:nope")
        assert (failed and "sim:nope" in said) or "nope" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_agent_starts_a_study_and_a_person_stops_it(tmp_path: Path) -> None:
    """The whole way: the study runs in a thread of the server, `optimize stop` reaches it there, the box is left clean, the agent gets the result."""

    def stopped() -> subprocess.CompletedProcess[str]:
        """Once something of ours runs on the box, so that there is something to close."""
        end = time.monotonic() + 150
        while time.monotonic() < end:
            for row in optimizer.studies(runs=tmp_path):
                if row["ending"] == "never opened":  # it is just being begun
                    continue
                entries = optimizer.story(row["study"], runs=tmp_path)["entries"]
                if any(entry["body"].get("step") == "await_ready" for entry in entries if entry["kind"] == "outcome"):
                    words = [sys.executable, "-m", "optimizer", "--runs", str(tmp_path), "stop", row["study"]]
                    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            time.sleep(0.3)
        raise AssertionError("no server was started")

    async with session(tmp_path, "--allow-run") as one:
        result, said = await asyncio.gather(ask(one, "run", host="sim:h200-7b", target="1000tps@16", confirm="sim:h200-7b"), asyncio.to_thread(stopped))
        failed, found = result
        assert said.returncode == 0 and not failed, (said, found)
        assert found["ending"] == "interrupted" and found["reason"] == "Interrupted by SIGTERM."
        failed, rows = await ask(one, "studies")  # the server serves on
        assert not failed and rows["studies"][0]["ending"] == "interrupted"
    kinds = [(entry["kind"], entry["body"].get("step")) for entry in optimizer.story(rows["studies"][0]["study"], runs=tmp_path)["entries"]]
    assert ("outcome", "stop") in kinds and kinds[-2:] == [("outcome", "secure"), ("closed", None)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_without_a_study_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "optimizer", "--runs", str(tmp_path), "mcp"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        version = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": version}).encode() + b"\n")
        process.stdin.flush()
        assert b"optimize" in process.stdout.readline()  # it serves, and waits at its standard input
        process.send_signal(number)
        assert process.wait(30) == -number


def test_a_plan_says_how_long_each_step_takes_and_who_says_so(runs: Path) -> None:
    found = optimizer.plan("sim:h200-7b", "1000tps@16", runs=runs)
    assert [row["kind"] for row in found["durations"]] == ["read", "secure", "start", "measure", "confirm", "stop", "end"]
    assert all(row["source"] for row in found["durations"])
    unknown = next(row for row in found["durations"] if row["kind"] == "start")
    assert unknown["low_s"] is None and "no earlier study" in unknown["source"] and found["candidates_that_fit"] is None


def test_a_prompt_completes_the_librarys_names() -> None:
    assert set(optimizer.__all__) <= set(dir(optimizer)) and "Any" not in dir(optimizer)
