"""Every error that a person can meet says what happened, why it matters and what to do next: by its class, by the place that raises
it, and at each door where it is shown."""

import ast
import importlib.util
import inspect
import json
import os
import pwd
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from optimizer.cli import main
from optimizer.errors import JournalError, OptimizerError

ROOT = Path(__file__).parents[2]
SENTENCE = re.compile(r"[A-Z`…].*[.…)]", re.DOTALL)
STATED = re.compile(r"\b[Nn](?:othing|o study) (?:more )?(?:was|more is) ")


def _table() -> ModuleType:
    found = importlib.util.spec_from_file_location("errors_table", ROOT / "scripts/docs/errors_table.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


TABLE = _table()
MESSAGES: list[tuple[str, str, str, str]] = TABLE.messages()


@pytest.mark.parametrize("kind", TABLE.classes(), ids=lambda kind: kind.__name__)
def test_every_class_says_why_it_matters_and_what_to_do(kind: type[OptimizerError]) -> None:
    happened, matters, todo = TABLE.said(kind)
    assert all(SENTENCE.fullmatch(text) for text in (happened, matters, todo)), (happened, matters, todo)
    assert len({happened, matters, todo}) == 3
    if kind is not OptimizerError:  # a bug's answers are for bugs
        assert matters != OptimizerError.matters and todo != OptimizerError.todo


def test_every_place_that_raises_says_all_three_and_none_twice() -> None:
    assert len(MESSAGES) > 300
    wrong: list[tuple[str, ...]] = []
    for kind, message, why, hint in MESSAGES:
        parts = (message, why, hint)
        if not (message.strip("… ") and why and hint):
            wrong.append((kind, message, "a part is missing"))
        elif sum(bool(STATED.search(part)) for part in parts) > 1 or why.rstrip(".") in message + hint:
            wrong.append((kind, *parts, "what was (not) done is said twice"))
        elif not re.search(r"[.:?…)]$", message.strip()) and message[-1] != "…":
            wrong.append((kind, message, "no whole sentence"))
    assert not wrong, "\n".join(map(str, wrong))


# An error of each branch that can be had without a machine: exit code, words.
MET: list[tuple[int, list[str]]] = [
    (2, ["run", "--host", "sim:h200-7b", "--target", "fast"]),
    (2, ["run", "--host", "sim:nope", "--target", "1000tps"]),
    (2, ["run", "--no-such-option"]),
    (2, ["diagnose", "--evidence", "/nonexistent"]),
    (2, ["plan", "--host", "sim:h200-7b", "--engine", "triton"]),
    (2, ["why-not", "nope", "mem_fraction_static"]),
    (2, ["replay", "--table", "/nonexistent.csv"]),
    (4, ["plan", "--host", "no-such-host.invalid", "--target", "1000tps"]),
    (6, ["journal", "broken"]),
]


@pytest.mark.parametrize(("code", "words"), MET, ids=lambda value: " ".join(value) if isinstance(value, list) else str(value))
def test_the_command_shows_all_three(code: int, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs/broken").mkdir(parents=True)
    (tmp_path / "runs/broken/journal.db").write_text("no journal at all")
    plain = CliRunner().invoke(main, ["--runs", str(tmp_path / "runs"), *words])
    assert plain.exit_code == code, plain.output
    asked = CliRunner().invoke(main, ["--runs", str(tmp_path / "runs"), "--json", *words])
    error = json.loads(asked.stdout)["error"]
    assert set(error) == {"kind", "message", "why", "hint"} and all(error.values())
    flat = " ".join(plain.stderr.split())
    for part in ("message", "why"):
        assert " ".join(error[part].split()) in flat, (part, plain.stderr)


def test_a_study_that_cannot_be_read_says_why_in_the_list(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/journal.db").write_text("no journal at all")
    shown = CliRunner().invoke(main, ["--runs", str(tmp_path), "studies"])
    assert shown.exit_code == 0 and "unreadable" in shown.output
    assert "is not a journal: it is no SQLite file." in shown.output and "Name the folder of a study." in shown.output
    row = json.loads(CliRunner().invoke(main, ["--runs", str(tmp_path), "--json", "studies"]).stdout)["studies"][0]
    assert row["ending"] == "unreadable" and row["said"] and row["why"] and row["do"]


def test_what_the_raiser_knows_better_goes_first() -> None:
    make: Callable[..., OptimizerError] = JournalError
    assert make("It broke.").parts == ("It broke.", JournalError.matters, JournalError.todo)
    assert make("It broke.", why="So it goes.", hint="Mend it.").parts == ("It broke.", "So it goes.", "Mend it.")


def test_a_bug_says_that_it_is_one(tmp_path: Path) -> None:
    code = "import sys, optimizer.report.journal_view as view\ndef broken(*_): raise ZeroDivisionError('oh')\nview.study_rows = broken\nfrom optimizer.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--runs", str(tmp_path), "studies", "--json"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" in done.stderr and "optimize: ZeroDivisionError: oh. This is a bug." in done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "OptimizerError" and error["why"] in done.stderr and error["hint"] in done.stderr
    assert "changed nothing on a box" in error["why"]


def test_what_breaks_behind_a_closed_study_does_not_call_it_open() -> None:
    code = """import optimizer.wiring as wiring, optimizer.cli as cli
from optimizer.core.state import State
from tests.unit.core.model_box import PLAN, spec
def ends(): wiring.keep_results(None, None, State(spec=spec(), closed={"ending": "met"}), PLAN, None)
cli.main = ends
from optimizer.__main__ import main; main()"""
    done = subprocess.run([sys.executable, "-c", code, "run"], cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stderr.partition("This is a bug.")[2]
    assert done.returncode == 1 and "Its study is closed" in said and "`optimize resume test` writes them." in said and "guard" not in said, done.stderr


def test_what_the_end_of_a_study_needs_is_loaded_before_its_first_launch() -> None:
    """An upgrade of this package under a running study must not meet its closing: of the functions that end one, none imports."""
    from optimizer.report import reproducing, study
    from optimizer.wiring import _drive, _keep_results, _remember, boxes, keep_results, leasing

    for part in (_drive, _keep_results, keep_results, _remember, boxes._drive, leasing.held, study, reproducing):
        tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        late = [node.lineno for function in ast.walk(tree) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
        assert not late, (part, late)


@pytest.mark.parametrize(("words", "said"), [(["stop", "s"], "Where it is open the guard"), (["studies"], "changed nothing on a box"), (["restore", "--host", "b"], "doctor")])
def test_a_full_disk_is_no_bug(words: list[str], said: str) -> None:
    code = "import sys, optimizer.cli as cli\ndef full(): raise OSError(28, 'No space left on device', '/runs/s/stop')\ncli.main = full\nfrom optimizer.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("optimize: No space left on device: /runs/s/stop.\n"), done.stderr
    assert said in done.stderr and "bug" not in done.stderr and "Traceback" not in done.stderr


def _with(streams: str, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "", **env})


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_lead_nowhere(closed: str, tmp_path: Path) -> None:
    """Cron and daemons start commands so. No file of ours may get the number of a stream: a child would write into it."""
    told = tmp_path / "told"
    code = f"""import os, subprocess, sys, optimizer.cli as cli
def command():
    with open({str(told)!r}, "w") as file:
        print("lost", sys.stdout.isatty(), file=sys.stderr); print("lost")
        subprocess.run(["sh", "-c", "echo child; echo child >&2; cat"], stdin=None if sys.stdin.fileno() != 0 else subprocess.DEVNULL)
        file.write(str(file.fileno()))
cli.main = command
from optimizer.__main__ import main; main()"""
    done = _with(closed, code)
    assert done.returncode == 0 and int(told.read_text()) > 2, (done.stderr, told.read_text())


def test_what_could_not_be_said_is_an_error_and_a_reader_that_has_enough_is_none() -> None:
    """The interpreter's own words for it, at its exit, would say neither what happened nor what to do."""
    code = "import optimizer.cli as cli\ncli.main = lambda: print('said')\nfrom optimizer.__main__ import main; main()"
    full = _with(">/dev/full", code)
    assert (full.returncode, full.stderr.splitlines()[0]) == (1, "optimize: No space left on device."), full.stderr
    gone = _with("| true", "import time, optimizer.cli as cli\ncli.main = lambda: (time.sleep(1), print('said'))\nfrom optimizer.__main__ import main; main()")
    assert gone.stderr == "", gone.stderr


@pytest.mark.parametrize("home", ["", "here"])
def test_a_home_that_is_no_folder_is_that_of_the_users_entry(home: str) -> None:
    code = "import pathlib, optimizer.cli as cli\ncli.main = lambda: print(pathlib.Path.home())\nfrom optimizer.__main__ import main; main()"
    done = _with("", code, HOME=home)
    assert done.stdout.strip() == pwd.getpwuid(os.getuid()).pw_dir, done
