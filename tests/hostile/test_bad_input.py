"""What a person can get wrong on the command line and in files: one clear message with what to do next, the documented exit
code, no traceback, and nothing left behind. In this process, because only words are judged; `test_boxes.py` runs the tool."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from optimizer.cli import main

REPOSITORY = Path(__file__).parents[2]
RECORDING = next((REPOSITORY / "tests/recordings/sglang-0.5.12-h200").iterdir())
LAUNCH = "python3 -m sglang.launch_server --model-path /models/m --port 30000"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path


def call(*words: str, knowledge: Path = REPOSITORY) -> Result:
    return CliRunner().invoke(main, ["--knowledge", str(knowledge), *words], catch_exceptions=True)


def refused(result: Result, code: int, *said: str) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for text in said:
        assert text in result.output, result.output
    assert len(result.output) < 4000


def run(*words: str, host: str = "localhost", target: str | None = "1000tps@16") -> Result:
    return call("run", "--host", host, *(["--target", target] if target is not None else []), *words)


@pytest.mark.fault("H21")
@pytest.mark.parametrize(
    "target",
    ["0tps", "-1tps", "1e999tps", "1000 tokens", "1000tps@p999", "nan tps", "NaNtps", "inf", "", " ", ",", "1000tps@0", "1000tps@-4",
     "1000tps@1e3", "ttft.p99<0ms", "ttft.p99>500ms", "ttft.p42.p<1s", "1000tps@16,1000tps@32", "1000tps;rm -rf ~", "$(id)tps", "١٠٠٠tps",
     "1000tps@99999999999", "9" * 400 + "tps", "tps", "@16", "<500ms", "1000tps@16@16"],
)  # fmt: skip
def test_targets(here: Path, target: str) -> None:
    result = run("--launch", LAUNCH, target=target)
    refused(result, 2)
    assert "target" in result.output.lower(), result.output
    assert not (here / "runs").exists()


def test_no_target_at_all(here: Path) -> None:
    refused(run(target=None), 2, "No target", "--target 1000tps@16")


@pytest.mark.fault("H23")
@pytest.mark.parametrize("host", ["my box", "box%1", "me@box;ls", "-oProxyCommand=x", "", "../x", "a/b", "$(id)", "x" * 300, "sim:",
                                  "sim:../x", "b\u00f6x", "sim:no/pe"])  # fmt: skip
def test_host_names(here: Path, host: str) -> None:
    result = run(host=host)
    refused(result, 2)
    assert not (here / "runs").exists()


def test_an_unknown_simulated_box_names_those_there_are(here: Path) -> None:
    refused(run(host="sim:nope"), 2, "nope", "sim:h200-7b")
    assert not list(here.glob("runs/*"))


@pytest.mark.fault("H22")
@pytest.mark.parametrize("study", ["../../x", "/etc/x", "a/b", ".hidden", "-x", "a:b", "a b", "", "x" * 65, "a\nb", "recorded", "..", "\u00fc"])
def test_study_names(here: Path, study: str) -> None:
    result = run("--study", study, "--launch", LAUNCH, host="sim:h200-7b")
    refused(result, 2, "study")
    assert not (here / "runs").exists() and not (here.parent / "x").exists()


@pytest.mark.fault("H22")
@pytest.mark.parametrize("study", ["../../x", "nope", "", "a/b", "."])
@pytest.mark.parametrize("command", ["resume", "replay", "journal", "stop"])
def test_unknown_studies(here: Path, command: str, study: str) -> None:
    refused(call(command, study), 2, "study")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("launch", "said"),
    [("'unclosed", "cannot be split"), ("", "empty"), ("   ", "empty"), ("A=1 B=2", "empty"), ("nowhere.json", "nowhere.json"), ("\\", "cannot be split")],
)
def test_launch_commands(here: Path, launch: str, said: str) -> None:
    refused(run("--launch", launch), 2, said)
    assert not (here / "runs").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"argv": "x"}', '{"argv": [1]}', '{"argv": []}', '{"argv": ["a"], "env": []}', "\xff",
                                     "[" * 5000, '{"argv": ["a"], "env": {"A": null}}'])  # fmt: skip
def test_launch_files(here: Path, content: str) -> None:
    (here / "launch.json").write_bytes(content.encode("latin-1"))
    refused(run("--launch", "launch.json"), 2, "launch")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [("w.json", "{"), ("w.json", "[]"), ("w.json", '{"concurrency": 0}'), ("w.json", '{"concurency": 16}'), ("w.json", '{"window_s": 1e999}'),
     ("w.json", '{"output_tokens": -1}'), ("w.toml", "concurrency = "), ("w.toml", "concurrency = 'many'"), ("w.json", "[" * 5000),
     ("w.json", '{"window_s": NaN}'), ("w.toml", "\x00")],
)  # fmt: skip
def test_workload_files(here: Path, name: str, content: str) -> None:
    (here / name).write_text(content)
    refused(run("--launch", LAUNCH, "--workload", name), 2, "workload")
    assert not (here / "runs").exists()


def test_a_name_that_is_no_field_is_told_the_one_it_resembles(here: Path) -> None:
    (here / "w.json").write_text('{"concurency": 3, "prompt_tokens": -4}')
    result = run("--launch", LAUNCH, "--workload", "w.json")
    refused(result, 2, "concurency is no field, did you mean concurrency?", "prompt_tokens: Input should be greater")
    assert "pydantic" not in result.output


@pytest.mark.parametrize("words", [("--target", "fast"), ("--target", "1000tps@16", "--engine", "nope"), ("--target", "1000tps@16", "--launches", "1")])
def test_a_refused_study_on_a_simulated_box_leaves_no_box(here: Path, words: tuple[str, ...]) -> None:
    refused(call("run", "--host", "sim:h200-7b", "--yes", *words), 2)
    assert list((here / "runs").glob("*")) == []


@pytest.mark.parametrize("words", [("--json", "run", "--target", "1000tps"), ("--json", "jurnal"), ("run", "--json", "--no-such"), ("run", "--host", "box", "--budget", "x", "--json")])
def test_a_command_line_that_is_not_understood_is_a_document_too(here: Path, words: tuple[str, ...]) -> None:
    result = call(*words)
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert error["message"] and error["hint"] and error["kind"] == "UsageError"


@pytest.mark.parametrize("content", ["launch = ", "lunch = 'x'", "launch = 3", "launch = \"'\"", "port = 'x'", "env = {A = 1}", "\x00", "launch = ['a', 1]"])
def test_host_files(here: Path, content: str) -> None:
    (here / "hosts").mkdir()
    (here / "hosts/gpu-box.toml").write_text(content)
    refused(run(host="gpu-box"), 2)
    assert not (here / "runs").exists()


@pytest.mark.fault("H24")
@pytest.mark.parametrize("words", [("--budget", "0"), ("--budget", "x"), ("--budget", "-1h"), ("--budget", "1e999h"), ("--launches", "1"), ("--launches", "0"),
                                   ("--launches", "x"), ("--port", "0"), ("--port", "70000"), ("--time-scale", "2"), ("--guard-minutes", "0"),
                                   ("--guard-minutes", "nan"), ("--confirm-window", "0"), ("--confirm-window", "nan"), ("--finish", "somehow"),
                                   ("--engine", "nope"), ("--workload", "nowhere.json"), ("--time-scale", "nan"), ("--budget", "9" * 400 + "h"), ("--seed", "x")])  # fmt: skip
def test_options(here: Path, words: tuple[str, ...]) -> None:
    refused(run("--launch", LAUNCH, *words), 2)
    assert not (here / "runs").exists()


@pytest.mark.fault("H8")
def test_a_broken_playbook_is_named_with_its_line(here: Path) -> None:
    for name in ("playbooks", "search_spaces"):
        shutil.copytree(REPOSITORY / name, here / "knowledge" / name)
    broken = here / "knowledge/playbooks/any/admission-cap-too-low.yaml"
    broken.write_text(broken.read_text().replace("\n", "\nlikelyhood: 3\n", 1))
    for words in (("run", "--host", "sim:h200-7b"), ("plan", "--host", "sim:h200-7b"), ("diagnose", "--evidence", str(RECORDING)), ("lint",)):
        result = call(*words, knowledge=here / "knowledge")
        refused(result, 2, f"{broken.name}:2", "likelyhood")
    assert not (here / "runs").exists()


def test_a_folder_without_knowledge(here: Path) -> None:
    refused(call("run", "--host", "sim:h200-7b", knowledge=here / "home"), 2, "playbooks/")


# ---- files in runs/ that are not ours ---------------------------------------------------------------------------------


def foreign(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")


def text(folder: Path) -> None:
    (folder / "journal.db").write_text("dear diary\n" * 20)


def empty(folder: Path) -> None:
    (folder / "journal.db").touch()


def newer(folder: Path) -> None:
    from optimizer.journal import Journal

    Journal.create(folder / "journal.db").close()
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as database:
        database.execute("PRAGMA user_version = 9999")


def unopened(folder: Path) -> None:
    from optimizer.journal import Journal

    Journal.create(folder / "journal.db").close()


@pytest.mark.fault("H36", "H37")
@pytest.mark.parametrize("make", [foreign, text, empty, newer, unopened])
def test_journals_that_are_none(here: Path, make: Any) -> None:
    folder = here / "runs/odd"
    folder.mkdir(parents=True)
    make(folder)
    before = (folder / "journal.db").read_bytes()
    for words in (("resume", "odd"), ("replay", "odd", "--verify"), ("stop", "odd")):
        result = call(*words)
        assert not (result.exception is not None and not isinstance(result.exception, SystemExit)), repr(result.exception)
        assert result.exit_code in (2, 6), (words, result.exit_code, result.output)
    for words in (("journal", "odd"), ("studies",)):
        result = call(*words)
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
        assert "Traceback" not in result.output
    if make is not unopened:
        assert (folder / "journal.db").read_bytes() == before


@pytest.mark.fault("H25")
def test_a_study_name_that_is_taken(here: Path) -> None:
    from optimizer.journal import Journal

    (here / "runs/odd").mkdir(parents=True)
    with Journal.create(here / "runs/odd/journal.db") as journal:  # with an entry: one without is taken over
        journal.append("note", {"text": "taken"}, expect=0)
    refused(run("--study", "odd", "--launch", LAUNCH), 2, "optimize resume odd")


def test_runs_cannot_be_written(here: Path) -> None:
    result = CliRunner().invoke(main, ["--knowledge", str(REPOSITORY), "--runs", "/proc/nowhere", "run", "--host", "localhost", "--target",
                                       "1000tps@16", "--launch", LAUNCH])  # fmt: skip
    refused(result, 6, "/proc/nowhere")


def test_errors_are_a_document_too(here: Path) -> None:
    result = CliRunner().invoke(main, ["--json", "run", "--host", "localhost", "--target", "0tps"])
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["error"]["kind"] == "UsageError" and document["error"]["message"]


@pytest.mark.parametrize("words", [("run", "--host", "localhost", "--json", "--target", "0tps"), ("resume", "nope", "--json"), ("replay", "nope", "--json")])
def test_json_asked_for_behind_the_command(here: Path, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["message"]


@pytest.mark.parametrize("words", [("diagnose",), ("diagnose", "--evidence", "nowhere"), ("restore", "--host", "sim:h200-7b"), ("journal",), ("nope",)])
def test_other_commands(here: Path, words: tuple[str, ...]) -> None:
    refused(call(*words), 2)
