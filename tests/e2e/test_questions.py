"""`optimize run` at a real terminal: it asks only what neither an option nor the box answers, and giving up leaves no trace."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimizer.evidence.usual_request import usual_request
from optimizer.journal import Journal

from .fastbox import FastBox, free_port, listening
from .terminal import Terminal

Sit = Callable[..., Terminal]


@pytest.fixture
def sit(box: FastBox) -> Iterator[Sit]:
    """Runs a command of the tool at a terminal."""
    made: list[Terminal] = []

    def start(*words: str, **options: object) -> Terminal:
        made.append(Terminal(box.command(*words), box.env, box.here, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def words_of(box: FastBox, *more: str) -> list[str]:
    return ["run", "--host", "localhost", "--port", str(box.port), "--study", "asked", *more]


@pytest.mark.slow
@pytest.mark.smoke
def test_it_asks_target_finish_and_consent_and_a_no_leaves_no_trace(box: FastBox, sit: Sit) -> None:
    box.serve()
    one = sit(*words_of(box, "--workload", str(box.here / "w.json")))
    at = one.answer("What must it reach?", "fast")
    at = one.answer("What must it reach?", "170tps@8", after=one.until("The target 'fast' is not understood", after=at))
    at = one.answer("Number", "2", after=one.until("What is to run afterwards?", after=at))
    one.answer(f"port {box.port}). It will be stopped", "n", after=at)
    assert one.wait() == 2
    assert "left alone" in one.text and "prompt tokens" not in one.text.lower(), one.text
    box.assert_clean(serving=True)
    assert not (box.runs / "asked").exists()


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.parametrize("key", [b"\x03", b"\x04"], ids=["ctrl-c", "end of input"])
def test_giving_up_at_a_question_ends_it(box: FastBox, sit: Sit, key: bytes) -> None:
    one = sit("run", "--host", "localhost", "--port", str(free_port()), "--study", "asked")
    one.until("env):")
    time.sleep(0.5)  # a person presses after reading; Python looks for a signal before it begins to read, not in between
    one.press(key)
    assert one.wait(20) == 130
    assert "nothing was changed" in one.text and not (box.runs / "asked").exists()


MISSED = """
import signal, sys, threading, time
import click
from optimizer.cli.person import Terminal
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # it goes to the other thread: the read is not woken, as if it had not begun
try:
    print("answered", Terminal().text("What", None, str))
except click.Abort:
    sys.exit(130)
"""


def test_ctrl_c_is_heard_although_the_read_was_not_woken(tmp_path: Path) -> None:
    one = Terminal([sys.executable, "-c", MISSED], dict(os.environ), tmp_path)
    try:
        one.until("What:")
        time.sleep(0.3)
        one.press(b"\x03")
        assert one.wait(10) == 130
    finally:
        one.close()


@pytest.mark.slow
def test_every_answer_is_in_the_study_and_in_the_command_that_asks_nothing(box: FastBox, sit: Sit) -> None:
    """No server runs: the launch is asked for, and nobody is asked whether it may be stopped."""
    box.port = next(port for port in iter(free_port, None) if not listening(port))
    argv = list(box.argv)
    argv[argv.index("--port") + 1] = str(box.port)
    (box.here / "launch.json").write_text(json.dumps({"argv": argv, "cwd": str(box.home)}))
    out = box.here / "out.json"
    one = sit(*words_of(box, "--json", "--confirm-window", "2", "--launches", "2"), stdout=out)
    at = one.answer("The command that starts it", "make me a server")
    at = one.answer("The command that starts it", str(box.here / "launch.json"), after=one.until("No engine is known that starts so", after=at))
    at = one.answer("What must it reach?", "1tps", after=at)
    at = one.answer("Requests at once [16]", "4", after=at)
    at = one.answer("Prompt tokens of a usual request [512]", "none", after=at)
    at = one.answer("Prompt tokens of a usual request [512]", "64", after=one.until("A whole number", after=at))
    at = one.answer("Output tokens of a usual request [256]", "", after=at)
    one.until("--target 1tps --port", after=at)
    one.until("--concurrency 4 --prompt-tokens 64 --output-tokens 256 --yes", after=at)
    one.until("Reading the box", after=one.until("Study asked: target 1tps", after=at))
    one.press(b"\x03")  # what follows is the study's business
    assert one.wait() == 130
    with Journal.open(box.runs / "asked" / "journal.db", write=False) as journal:
        spec = journal.read()[0].body["spec"]
    assert (spec["workload"]["concurrency"], spec["workload"]["prompt_tokens"], spec["workload"]["output_tokens"]) == (4, 64, 256)
    assert spec["launch"]["argv"] == argv and spec["target"]["text"] == "1tps"
    assert "afterwards" not in one.text and "will be stopped" not in one.text
    assert json.loads(out.read_text())["ending"] == "interrupted"
    box.assert_clean()


@pytest.mark.slow
@pytest.mark.smoke
def test_with_yes_or_without_a_terminal_nothing_is_asked(box: FastBox, sit: Sit) -> None:
    at_terminal = sit(*words_of(box, "--yes"))
    assert at_terminal.wait(20) == 2 and "No target was given" in at_terminal.text
    piped = box(*words_of(box))
    assert piped.exit == 2 and "No target was given" in piped.err and "?" not in piped.err


VLLM = """vllm:num_requests_running{model_name="m"} 3.0
vllm:prompt_tokens_total{model_name="m"} 1.2e+06
vllm:request_prompt_tokens_sum{model_name="m"} 1.2e+06
vllm:request_prompt_tokens_count{model_name="m"} %d
vllm:request_generation_tokens_sum{model_name="m"} 60000.0
"""
SGLANG = """sglang:prompt_tokens_total{model_name="m"} 91500.0
sglang:generation_tokens_total{model_name="m"} 12500.0
sglang:num_requests_total{model_name="m"} 100.0
"""


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [(VLLM % 1000, (1200, 60, 1000)), (VLLM % 10, None), (SGLANG, (915, 125, 100)), ("", None), ("\x00\xff{", None), ("llamacpp:n_decode_total 5", None)],
)
def test_the_offered_answer_is_what_the_server_counted(metrics: str, expected: tuple[int, int, int] | None) -> None:
    found = usual_request(metrics.encode("latin-1"))
    assert (None if found is None else tuple(found)) == expected
