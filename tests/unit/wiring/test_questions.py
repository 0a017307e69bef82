"""What is asked, and what an answer means: one server's consent is no other's, and the printed command asks nothing again."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.box.results import ServerProcess
from optimizer.cli import main
from optimizer.cli.studying import options_of
from optimizer.errors import UsageError
from optimizer.evidence.usual_request import UsualRequest
from optimizer.wiring import Options, Roots, prepare, questions
from optimizer.wiring.questions import Looked, command_of, completed

ROOTS = Roots(runs=Path("/nonexistent"))


def server(port: int, pid: int) -> ServerProcess:
    return ServerProcess(
        pid=pid, start_time=1, boot_id="b", engine="sglang", argv=("python3", "-m", "sglang.launch_server", "--port", str(port)), hidden_arguments=0, cwd="/",
        exe=None, uid=1000, ports=(port,), env={}, env_readable=True, logs=(), supervisor=None, launch_id=None,
    )  # fmt: skip


class Person:
    """Agrees to the hosts that are named; takes every default."""

    def __init__(self, *agrees: str, choice: int = 0) -> None:
        self.agrees, self.choice, self.heard = agrees, choice, []  # type: ignore[var-annotated]

    def choose(self, question: str, choices: Sequence[str]) -> int:
        self.heard.append(question)
        return self.choice if "Which one" in question else 0

    def text(self, question: str, default: str | None, check: Callable[[str], object]) -> str:
        self.heard.append(f"{question} [{default}]")
        answer = default or "100tps@8"
        check(answer)
        return answer

    def agree(self, question: str) -> bool:
        self.heard.append(question)
        return any(f"runs on {host} " in question for host in self.agrees)

    def tell(self, text: str) -> None:
        self.heard.append(text)


def boxes(monkeypatch: pytest.MonkeyPatch, **found: Looked) -> None:
    async def look(options: Options, roots: Roots) -> Looked:
        return found[options.host]

    monkeypatch.setattr(questions, "_look", look)


def test_agreeing_to_one_server_says_nothing_about_that_of_another_box(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes(monkeypatch, a=Looked(None, (server(30000, 11),)), b=Looked(None, (server(30000, 22),)))
    options = Options(host="a", more_hosts=("b",))
    only_a = Person("a")
    with pytest.raises(UsageError, match="The server on b was left alone"):
        completed(options, ROOTS, only_a)
    assert completed(options, ROOTS, Person("a", "b")).yes
    boxes(monkeypatch, a=Looked(None, (server(30000, 11),)), b=Looked(None, ()))
    assert completed(options, ROOTS, only_a).yes  # nothing runs on b that could be stopped


def test_the_chosen_server_and_what_its_requests_were_like(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes(monkeypatch, a=Looked(None, (server(30000, 11), server(30001, 22)), {30001: UsualRequest(1830, 212, 12345)}))
    person = Person("a", choice=1)
    made = completed(Options(host="a"), ROOTS, person)
    assert (made.port, made.prompt_tokens, made.output_tokens, made.concurrency, made.yes) == (30001, 1830, 212, None, True)
    assert any("12,345 requests" in line for line in person.heard) and any("process 22" in line for line in person.heard)


def test_a_simulated_box_answers_for_itself() -> None:
    options = Options(host="sim:h200-7b")
    assert completed(options, ROOTS, Person()) == options


def test_the_printed_command_gives_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes(monkeypatch, a=Looked(None, (server(30000, 11), server(30001, 22))), b=Looked(None, ()))
    made = completed(Options(host="a", more_hosts=("b",)), ROOTS, Person("a"))
    words = shlex.split(command_of(made))
    command = main.get_command(main.make_context("optimize", ["run"], resilient_parsing=True), "run")
    assert command is not None
    assert options_of(command.make_context("run", words[2:]).params) == made


@pytest.mark.parametrize(("name", "value"), [("concurrency", 7), ("prompt_tokens", 111), ("output_tokens", 33)])
def test_each_option_of_the_load_is_in_the_study(tmp_path: Path, name: str, value: int) -> None:
    options = Options(host="localhost", target=("1tps",))
    workload = prepare(replace(options, **{name: value}), Roots(runs=tmp_path)).spec.workload  # type: ignore[arg-type]
    assert getattr(workload, name) == value
    if name == "concurrency":
        with pytest.raises(UsageError, match="names concurrency 8"):
            prepare(replace(options, target=("1tps@8",), concurrency=7), Roots(runs=tmp_path))
