"""What the documents tell a reader to type works: every command in a ```console block is run, or, where it needs a machine of
the reader's own, at least understood by the program. A command of a kind that nobody checks fails here."""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from optimizer import wiring
from optimizer.errors import UsageError
from optimizer.journal import Journal
from optimizer.knowledge.library import load_library
from optimizer.knowledge.load import find_knowledge
from optimizer.model.workload import Workload
from optimizer.runner import hosts
from optimizer.runner.execute import knowledge_blob
from optimizer.runner.loop import drive
from optimizer.wiring import learning
from tests.datasette import answer, serving
from tests.postgres import Server
from tests.unit.bench.conftest import null_server as null_server
from tests.unit.core.model_box import ModelBox, spec

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# How documents call a study -> the study that stands for it here: one of a box in memory, and the record of a real one.
STUDIES = {"STUDY": "a41c07", "BEFORE": "first", "AFTER": "first"}
OF_COMMAND = {  # an old record is read, not decided again; loads are many in it; what it writes at its end needs a real server's survey
    "replay": {"first": "a41c07"}, "tradeoff": {"STUDY": "first"}, "resume": {"STUDY": "first"},
}  # fmt: skip
STORES = "store.md"  # its commands need a database, and one another
HISTORY = ROOT / "tests" / "histories" / "h200-7b-eager"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
READING = {"journal", "studies", "replay", "lint", "plan", "diagnose", "doctor", "why", "why-not", "report", "diff", "tradeoff", "copy", "learned", "export", "resume"}
# What acts on a machine of the reader's own, with files that a study leaves: only the files are checked.
AWAY = {("sudo", "cp"), ("sudo", "systemctl"), ("docker", "compose"), ("kubectl", "apply"), ("sh",), ("cat",)}
COMPLETION = re.compile(r"_OPTIMIZE_COMPLETE=(bash|zsh|fish)_source optimize")


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    for document in DOCUMENTS:
        for found, text in BLOCK.findall(document.read_text(encoding="utf-8")):
            if found == language:
                yield document, text


def commands() -> list[tuple[str, str]]:
    """(document, command) of every line that starts with a prompt, without the comment."""
    found = []
    for document, text in blocks("console"):
        if document.name == STORES:
            continue
        for line in text.splitlines():
            if line.startswith("$ "):
                found.append((document.name, line[2:] if COMPLETION.search(line) else shlex.join(shlex.split(line[2:], comments=True))))
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as after a first study: the tree's documents and recordings, and a study in runs/ (of a box in memory)."""
    here = tmp_path_factory.mktemp("here")
    for name in ("playbooks", "search_spaces", "docs", "tests"):
        (here / name).symlink_to(ROOT / name)
    shutil.copytree(HISTORY, here / "runs" / "first")
    (here / "runs" / "recorded").symlink_to(ROOT / "runs" / "recorded")
    known = load_library(find_knowledge(ROOT))
    study = spec(study=STUDIES["STUDY"])
    with Journal.create(here / "runs" / study.study / "journal.db") as journal:
        journal.append("opened", wiring.opened_body(study, known), expect=journal.last_seq, blobs={"knowledge.json": knowledge_blob(known)})
        box = ModelBox({"disable_cuda_graph": True}, lambda values: 400.0 if values.get("disable_cuda_graph") else 1200.0)
        state = asyncio.run(drive(journal, box, wiring.plan_of(known)))
    assert state.closed is not None and state.closed["ending"] == "met"
    (here / "theirs.json").write_text(learning.LearnedFile().model_dump_json(), encoding="utf-8")
    return here


def run(words: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(cwd)}
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)


def check_optimize(words: list[str]) -> None:
    """Runs what only reads; of what acts on a simulated box, its plan; the rest has to be understood."""
    if not words:  # it explains itself
        from optimizer.cli import main

        done = CliRunner().invoke(main, [])
        assert done.exit_code == 0 and done.stdout.count("\n  optimize ") == 3, done.output
        for line in done.stdout.splitlines():
            if line.startswith("  optimize "):
                understood(shlex.split(re.split(r"  +", line.strip())[0])[1:])
        return
    stands_for = {**STUDIES, **OF_COMMAND.get(words[0], {})}
    words = [stands_for.get(word, word) for word in words]
    host = words[words.index("--host") + 1] if "--host" in words else None
    understood(words)
    if words[0] == "run" and host is not None and host.startswith("sim:"):
        words[0] = "plan"
        if "--metrics" in words:  # of what runs alone
            del words[words.index("--metrics") : words.index("--metrics") + 2]
    if "--metrics" in words:
        words[words.index("--metrics") + 1] = "0"  # whatever is free here
    if words[0] in READING and (host is None or host.startswith("sim:")):
        from optimizer.cli import main

        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, f"optimize {shlex.join(words)}: exit {done.exit_code}\n{done.output[-800:]}"
        assert len(done.output) > 40, done.output


def taken_home() -> set[str]:
    """The files that a study leaves for its winner, as the code names them."""
    source = "".join((ROOT / "optimizer" / name).read_text(encoding="utf-8") for name in ("report/study.py", "engines/deploy.py", "engines/script.py"))
    return set(re.findall(r'"(\w+\.(?:sh|service|yaml|diff))":', source))


def understood(words: list[str]) -> None:
    """Options exist and have values that are accepted, up to the point where a machine would be reached."""
    from optimizer.cli import main
    from optimizer.cli.studying import options_of

    name, context = words[0], main.make_context("optimize", [words[0]], resilient_parsing=True)
    command = main.get_command(context, name)
    assert command is not None, f"there is no command {name}"
    parsed = command.make_context(name, list(words[1:]), parent=context)
    if name in ("run", "plan"):
        wiring.prepare(options_of(parsed.params), wiring.Roots(runs=Path("elsewhere")))
    elif parsed.params.get("host"):
        hosts.parse_host(parsed.params["host"])


@pytest.mark.parametrize(("document", "command"), commands())
def test_a_documented_command_works(document: str, command: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("OPTIMIZE_LEARNED", str(here / "learned.json"))
    (here / "study.db").unlink(missing_ok=True)
    if shell := COMPLETION.search(command):
        done = run(["env", f"_OPTIMIZE_COMPLETE={shell[1]}_source", "optimize"], here)
        assert done.returncode == 0 and "_optimize_completion" in done.stdout, done.stderr
        if shell[1] == "bash":
            assert "_optimize_completion" in run(["bash", "-c", f"{command.partition('#')[0]}; complete -p optimize"], here).stdout
        return
    words = shlex.split(command)
    if words[0] == "optimize":
        check_optimize(words[1:])
    elif words[0] == "make":
        done = run([*words[:1], "--dry-run", *words[1:]], ROOT)
        assert done.returncode == 0 and done.stdout, done.stderr
    elif words[0] == "sqlite-utils":
        study = "first" if "server.log" in command else STUDIES["STUDY"]
        done = run([word.replace("STUDY", study) for word in words], here)
        assert done.returncode == 0 and len(done.stdout.splitlines()) > 2, done.stderr + done.stdout
    elif words[0] == "datasette":
        with serving([word.replace("STUDY", STUDIES["STUDY"]) for word in words[1:]], here) as address:
            assert answer(address, "/journal/trial.json")["rows"]
    elif tuple(words[:1]) in AWAY or tuple(words[:2]) in AWAY:
        assert all(word.removeprefix("runs/STUDY/") in taken_home() for word in words if word.startswith("runs/")), words
    elif words[0] == "pytest":
        done = run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *words[1:]], ROOT)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert words == [".", ".venv/bin/activate"], f"{document}: nothing checks {command!r}"


# What a bench of a document needs to be short here; the loads, targets, forms and files stay the document's.
SHORT = ("--window", "1", "--warmup", "0.3", "--warmup-max", "2", "--prompt-tokens", "32", "--output-tokens", "16")
# Of each kind one. Those with another tool are run where that tool is installed (tests/engines); the knee may climb for long.
BENCHES = {
    option: words
    for _, command in commands()
    for option in ("--csv", "--against", "--export-as", "--out", "--knee")
    if (words := shlex.split(command))[:2] == ["optimize", "bench"] and option in words
}


@pytest.mark.slow
@pytest.mark.parametrize("option", BENCHES)
def test_a_documented_bench_measures(option: str, here: Path, null_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Against null servers."""
    monkeypatch.chdir(here)
    words = BENCHES[option]
    servers = {url: null_server("--gap-ms", "5") for url in ("http://127.0.0.1:8000", "http://127.0.0.1:8001") if url in words}
    done = run([*(servers.get(word, word) for word in words), *SHORT], here)
    assert done.returncode in (0, 3, 4), done.stderr  # 3: the document's target is not this server's; 4: never steady, on a busy machine
    assert len(done.stdout.splitlines()) > 2, done.stdout
    for name in (word for word in words if re.fullmatch(r"\w+\.(json|csv|html)", word)):
        assert (here / name).exists() or f"{name} was not written" in done.stderr, done.stderr  # nothing was valid, on a busy machine


def test_the_commands_about_stores_work(here: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, against a real server; the study that stands for STUDY is in the store, as after the first command."""
    monkeypatch.chdir(here)
    lines = [line[2:] for document, text in blocks("console") if document.name == STORES for line in text.splitlines() if line.startswith("$ ")]
    (here / "study.db").unlink(missing_ok=True)
    url = postgres.new_database().url
    monkeypatch.setenv("OPTIMIZE_STORE", url)
    check_optimize(["copy", f"runs/{STUDIES['STUDY']}"])
    assert lines[0].startswith("export OPTIMIZE_STORE=postgresql://") and len(lines) > 8
    for line in lines[1:]:
        words = shlex.split(line, comments=True)[1:]
        if words == ["copy", "study.db"]:  # into a store that does not hold it yet
            monkeypatch.setenv("OPTIMIZE_STORE", postgres.new_database().url)
        check_optimize(words)
    assert (here / "study.db").exists() and url != os.environ["OPTIMIZE_STORE"]


@pytest.mark.parametrize("words", [["run", "--host", "box", "--no-such"], ["run", "--host", "box", "--target", "fast"], ["tune"]])
def test_a_command_that_does_not_exist_is_noticed(words: list[str]) -> None:
    import click

    with pytest.raises((click.ClickException, UsageError, AssertionError)):
        understood(words)


def test_documents_give_commands() -> None:
    assert len(commands()) > 20


def test_no_command_hides_from_these_tests() -> None:
    """A command in an indented block, or in a fence of another kind, would be run by nobody."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        outside = BLOCK.sub("", text)
        hidden = re.findall(r"^ {4,}(?:\$ )?(?:optimize|make|pytest|datasette|sqlite-utils) .*$", outside, re.MULTILINE)
        hidden += [line for kind, block in BLOCK.findall(text) if kind != "console" for line in block.splitlines() if line.startswith("$ ")]
        assert not hidden, (document.name, hidden)


def test_the_example_playbook_is_accepted(tmp_path: Path) -> None:
    for name in ("playbooks", "search_spaces"):
        shutil.copytree(ROOT / name, tmp_path / name)
    examples = [text for document, text in blocks("yaml") if document.name == "adding-a-playbook.md"]
    assert examples
    for text in examples:
        name = re.match(r"# (playbooks/\S+\.yaml)\n", text)
        assert name, "an example names its file in the first line"
        (tmp_path / name[1]).write_text(text, encoding="utf-8")
        done = run(["optimize", "lint", str(tmp_path), "--json"], tmp_path)
        assert name[1] not in done.stdout, done.stdout
        assert '"errors": 0' in done.stdout


def test_example_files_are_accepted(tmp_path: Path) -> None:
    found = 0
    for document, text in blocks("toml"):
        found += 1
        (tmp_path / "box.toml").write_text(text, encoding="utf-8")
        if document.name == "workloads.md":
            hosts.read_workload(tmp_path / "box.toml", Workload())
            assert tomllib.loads(text) == tomllib.loads((ROOT / "docs/examples/long-context.toml").read_text(encoding="utf-8"))
        else:
            assert hosts.launch_of(hosts.describe(hosts.parse_host("box"), (tmp_path,))) is not None
    assert found >= 2


def test_the_example_space_is_accepted(tmp_path: Path) -> None:
    for name in ("playbooks", "search_spaces"):
        shutil.copytree(ROOT / name, tmp_path / name)
    examples = [text for document, text in blocks("yaml") if document.name == "adding-a-space.md"]
    assert examples
    for text in examples:
        name = re.match(r"# (search_spaces/\S+\.yaml)\n", text)
        assert name, "an example names its file in the first line"
        (tmp_path / name[1]).write_text(text, encoding="utf-8")
        done = run(["optimize", "lint", str(tmp_path), "--json"], tmp_path)
        assert name[1] not in done.stdout, done.stdout
        assert '"errors": 0' in done.stdout


def test_the_example_engine_keeps_the_contract() -> None:
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "docs/examples/test_toyserve.py"], ROOT)
    assert done.returncode == 0 and int(re.findall(r"(\d+) passed", done.stdout)[0]) > 70, done.stdout + done.stderr


def test_python_in_documents_runs(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(here)
    found = {document.name: text for document, text in blocks("python")}
    exec(compile(found["ecosystem.md"], "ecosystem.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "cuda-graph-disabled"
    compile(found["adding-an-engine.md"], "adding-an-engine.md", "exec")
    assert set(found) == {"ecosystem.md", "adding-an-engine.md"}, "nothing runs the new one"


def test_every_name_of_the_library_is_documented() -> None:
    import optimizer

    text = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
    assert not [name for name in optimizer.__all__ if not re.search(rf"`{name}\b", text)]


def test_the_mcp_configuration_starts_a_command_that_exists() -> None:
    example = json.loads((ROOT / "docs/examples/mcp.json").read_text(encoding="utf-8"))
    assert [json.loads(text) for _, text in blocks("json")] == [example]
    server = example["mcpServers"]["optimize"]
    assert server["command"] == "optimize"
    assert run(["optimize", *server["args"], "--help"], ROOT).returncode == 0


def test_the_regression_gate_is_a_workflow_whose_commands_exist() -> None:
    workflow = yaml.safe_load((ROOT / "docs/examples/regression-gate.yml").read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    commands_ = [line.strip() for text in steps for line in text.splitlines() if line.strip().startswith("optimize ")]
    assert len(commands_) == 2
    for command in commands_:
        understood(shlex.split(command.split(" > ")[0])[1:])


def test_exit_codes_of_the_gate_are_those_of_bench() -> None:
    from optimizer.cli import benching
    from optimizer.errors import Interrupted, UsageError

    text = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8").partition("## A regression gate")[2].partition("\n## ")[0]
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert rows == {0, benching.EXIT_NOT_MET, benching.EXIT_NOTHING_VALID, UsageError.exit_code, Interrupted.exit_code}


def test_the_table_of_errors_is_current() -> None:
    done = run([sys.executable, "scripts/docs/errors_table.py", "--check"], ROOT)
    assert done.returncode == 0, done.stderr


def test_every_error_says_what_it_means_and_what_to_do() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if re.match(r"\| (↳ )?`", line)]
    assert len(rows) > 20
    assert not [row for row in rows if len(row) != 5 or not all(len(cell.strip()) > (0 if index == 1 else 5) for index, cell in enumerate(row))]
    documented = {row[0].strip(" ↳`") for row in rows}
    from optimizer import errors

    assert {name for name, kind in vars(errors).items() if isinstance(kind, type)} <= documented


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"- (?:\w+: )?([\w-]+\.md)$", text, re.MULTILINE)) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_every_command_is_in_the_readme() -> None:
    from optimizer.cli import main

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in main.commands if f"`{name}`" not in text]


def test_every_workload_field_is_documented() -> None:
    text = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    assert not [name for name in Workload.model_fields if f"`{name}`" not in text]


def test_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8")):
            if not link.startswith("https://"):
                assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_exit_codes_are_the_documented_ones() -> None:
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)}
    from optimizer import errors

    used = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.OptimizerError)}
    assert rows == {0, *used, *wiring.EXIT_OF_ENDING.values()}


def test_every_option_of_run_is_said_somewhere_or_explains_itself() -> None:
    """An option without a help text is one that nobody can find."""
    from optimizer.cli import main

    for name, command in main.commands.items():
        silent = [option.name for option in command.params if option.param_type_name == "option" and not getattr(option, "help", None)]
        assert silent == [] or name in ("diagnose", "restore"), (name, silent)
