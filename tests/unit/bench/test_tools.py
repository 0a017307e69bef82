"""The field's load testing tools as source of a measurement and as form of a result. The files in ``tools/`` were written by the real
tools (vLLM 0.32, SGLang 0.5.23, guidellm 0.8.1, aiperf 0.13) against a null server of 30 ms and then 31 gaps of 5 ms: 100 requests of
32 tokens, four at a time. Lists of single requests and unread groups were cut out of them."""

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optimizer.bench.tools.base import About, Tool, Work, load_point
from optimizer.bench.tools.registry import TOOLS
from optimizer.cli import benching, main
from optimizer.model.measurement import LoadPoint, ValidityCode
from optimizer.model.workload import Workload
from optimizer.runner import tooling

FILES = {"vllm": "result.json", "sglang": "result.jsonl", "guidellm": "result.json", "aiperf": "profile_export_aiperf.json"}
RECORDED = Path(__file__).parent / "tools"
# What the tool does: it copies a recorded result to where its arguments say. The real tools take ten seconds and more to start.
STAND_IN = """
import shutil, sys
words = sys.argv[2:]
folder = words[words.index("--result-dir") + 1] + "/result.json" if "--result-dir" in words else words[words.index("--output-file") + 1]
print("key", __import__("os").environ.get("OPENAI_API_KEY"))
shutil.copyfile(sys.argv[1], folder)
"""


def work(folder: Path, **changes: Any) -> Work:
    fields: dict[str, Any] = {"url": "http://127.0.0.1:1", "model": "m", "tokenizer": "m", "requests": 100, "prompt_tokens": 64, "output_tokens": 32,
                              "concurrency": 4, "rate_per_s": None, "ignore_eos": True, "seed": 7, "folder": folder}  # fmt: skip
    return Work(**(fields | changes))


def recorded(name: str) -> Path:
    return next(RECORDED.glob(f"{name}.*"))


def read(name: str, folder: Path, **changes: Any) -> LoadPoint:
    shutil.copy(recorded(name), folder / FILES[name])
    asked = work(folder, **changes)
    return load_point(TOOLS[name].read(folder, asked), asked, TOOLS[name])


def test_the_command_line_knows_the_same_tools() -> None:
    assert tuple(TOOLS) == benching.TOOL_NAMES


@pytest.mark.parametrize("name", TOOLS)
def test_a_real_result_is_read(name: str, tmp_path: Path) -> None:
    point = read(name, tmp_path)
    assert (point.requests_ok, point.requests_failed, point.output_tokens, point.mean_output_tokens) == (100, 0, 3200, 32.0)
    # 4 streams, 30 ms and 31 gaps of 5 ms: 692 tokens/s and 185 ms less what the tool, its ramps and a busy machine cost.
    assert 450 < point.metrics["output_tokens_per_s"] < 692
    assert point.metrics["requests_per_s"] == pytest.approx(point.metrics["output_tokens_per_s"] / 32, rel=0.005)
    assert point.metrics["output_tokens_per_s"] == pytest.approx(3200 / point.window_s, rel=0.01)
    assert 30 < point.metrics["ttft_p50_ms"] < 60 and 4.9 < point.metrics["tpot_p50_ms"] < 5.2 and 184 < point.metrics["e2e_p50_ms"] < 230
    assert ("itl_p50_ms" in point.metrics) == (name != "guidellm")
    assert not point.invalid


@pytest.mark.parametrize("name", TOOLS)
def test_what_it_cannot_say_is_named_and_absent(name: str, tmp_path: Path) -> None:
    point = read(name, tmp_path)
    assert "ttft_p99_ms" not in point.metrics  # a hundred requests carry no p99, whatever the tool prints
    assert "ttft_p90_ms" in point.metrics
    assert point.client_cpu_share is None and point.cached_tokens is None and not point.windows_tokens_per_s
    assert all(check in point.notes[0] for check in ("foreign traffic", "prefix cache", "steady rate", "over-saturation"))


@pytest.mark.parametrize("name", TOOLS)
def test_failures_and_other_lengths_are_invalid(name: str, tmp_path: Path) -> None:
    assert [one.code for one in read(name, tmp_path, output_tokens=64).invalid] == [ValidityCode.OUTPUT_LENGTH]
    if name in ("sglang", "aiperf"):  # they do not count what failed: what was asked for and did not end has failed
        point = read(name, tmp_path, requests=125)
        assert point.metrics["error_rate"] == 0.2 and [one.code for one in point.invalid] == [ValidityCode.ERRORS]


@pytest.mark.parametrize("name", TOOLS)
def test_a_point_that_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    tool: Tool = TOOLS[name]
    point = read(name, tmp_path)
    text = tool.written([point], About("http://127.0.0.1:1", "m", Workload(), "20260101-000000"))
    (tmp_path / FILES[name]).write_text(text)
    again = load_point(tool.read(tmp_path, work(tmp_path)), work(tmp_path), tool)
    assert again.metrics == pytest.approx(point.metrics)
    assert "null" not in text.replace("null/tiny", "") and "NaN" not in text


def bench(*words: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["bench", *words], env=env or None)


def command(tmp_path: Path, name: str) -> str:
    (tmp_path / "tool.py").write_text(STAND_IN)
    return f"{sys.executable} {tmp_path / 'tool.py'} {recorded(name)}"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_command_measures_with_it_and_writes_other_forms(name: str, null_server: Any, tmp_path: Path) -> None:
    url = null_server()
    words = ["--concurrency", "4", "--output-tokens", "32", "--requests", "100", "--export-as", "guidellm", str(tmp_path / "g.json")]
    result = bench(url, "--with", name, "--with-command", command(tmp_path, name), *words, "--json", OPTIMIZE_API_KEY="sk-canary-0123456789")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["points"][0]
    assert found["requests_ok"] == 100 and found["valid"] and "sk-canary" not in result.output
    assert json.loads((tmp_path / "g.json").read_text())["benchmarks"][0]["metrics"]["request_totals"]["successful"] == 100


def test_our_own_measurement_in_each_form(null_server: Any, tmp_path: Path) -> None:
    url = null_server("--gap-ms", "5")
    words = [word for name in TOOLS for word in ("--export-as", name, str(tmp_path / f"{name}.json"))]
    result = bench(url, "--window", "2", "--warmup", "0.3", "--warmup-max", "2", "--output-tokens", "16", "--concurrency", "4", *words, "--json")
    point = json.loads(result.stdout)["points"][0]
    if not point["valid"]:
        pytest.skip("the machine is too busy for a steady window")
    for name in TOOLS:
        shutil.move(tmp_path / f"{name}.json", tmp_path / FILES[name])
        stated = TOOLS[name].read(tmp_path, work(tmp_path))
        assert (stated.completed, stated.output_tokens) == (point["requests_ok"], point["output_tokens"])
        assert stated.output_tps == pytest.approx(point["metrics"]["output_tokens_per_s"])


async def test_a_tool_that_takes_its_time_is_told_from_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tooling, "TELL_S", 0.1)
    said: list[str] = []
    program = (sys.executable, "-c", "print('round 1, key sk-canary', flush=True); import time; time.sleep(0.9)")
    point = await tooling.ToolRunner(TOOLS["vllm"], program, {"KEY": "sk-canary"}, 30.0).measure(work(tmp_path), said.append)
    assert not point.metrics and re.fullmatch(r"\d+ s of at most 30 s; it says: round 1, key <the API key>", said[-1]), said


@pytest.mark.parametrize(
    ("program", "said"),
    [("/nowhere/vllm bench serve", "cannot be started"), (f"{sys.executable} -c 'print(12345)'", "it said: 12345"), (f"{sys.executable} -c 'raise SystemExit(3)'", "exit 3")],
)  # fmt: skip
def test_a_tool_that_gives_nothing_is_said_to(program: str, said: str, null_server: Any) -> None:
    result = bench(null_server(), "--with", "vllm", "--with-command", program)
    assert result.exit_code in (2, 4) and said in result.output, result.output


@pytest.mark.parametrize(
    "words",
    [("--requests", "5"), ("--with", "guidellm", "--rate", "4"), ("--with", "vllm", "--api", "chat"), ("--with", "aiperf", "--max-connections", "4"),
     ("--export-as", "aiperf", "a.json", "--concurrency", "1,2"), ("--with", "vllm", "--workload", "docs/examples/long-context.toml"), ("--with", "wrk")],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_anything_is_measured(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    began = time.monotonic()
    result = bench("http://127.0.0.1:9", *words)
    assert result.exit_code == 2 and time.monotonic() - began < 5, result.output


def test_a_tool_that_takes_its_key_on_the_command_line_is_given_none(null_server: Any) -> None:
    result = bench(null_server(), "--with", "aiperf", OPTIMIZE_API_KEY="sk-canary-0123456789")
    assert result.exit_code == 2 and "command line" in result.output and "sk-canary" not in result.output


@pytest.mark.parametrize(
    ("said", "why"),
    [
        # aiperf 0.13 with a tokenizer that is not there: the error stands in a drawn panel, with advice below it
        ("aiperf.common.exceptions.TokenizerError: Failed to load\n(1) a file\n╭─ No Tokenizer ─╮\n│  Failed to load tokenizer '/nonexistent'  │\n│   \x1b[1mSuggested Fixes:\x1b[0m  │\n│  • Skip it  │\n╰────╯\n",
         "Failed to load tokenizer '/nonexistent'"),
        ("Traceback (most recent call last):\n  File x\nValueError: no such model\n", "ValueError: no such model"), ("warming up\nKilled\n\n", "Killed"), ("\x1b[31m╰──╯\n", ""),
    ],
)  # fmt: skip
def test_why_a_tool_failed_is_what_it_said_of_an_error_without_frames_and_colours(said: str, why: str) -> None:
    assert tooling._reason(said.encode()) == why


def test_what_holds_for_every_load_is_said_once(tmp_path: Path, null_server: Any) -> None:
    result = bench(null_server(), "--with", "vllm", "--with-command", command(tmp_path, "vllm"), "--concurrency", "4,8", "--output-tokens", "32", "--requests", "100")
    assert result.output.count("measured by vllm: figures of its whole run") == 1 and "4, 8: measured by vllm" in result.output
