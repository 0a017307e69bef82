"""Tab in real shells, at a terminal: what a person gets after typing part of a command, a study, a box, an option or a file."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal

SHELLS = {  # how it is started without anybody's own settings, and the line that docs/ecosystem.md has for it
    "bash": (["bash", "--norc", "--noprofile", "-i"], "", 'eval "$(_OPTIMIZE_COMPLETE=bash_source optimize)"'),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u; bindkey -e; ", 'eval "$(_OPTIMIZE_COMPLETE=zsh_source optimize)"'),
    "fish": (["fish", "--no-config", "-i"], "", "_OPTIMIZE_COMPLETE=fish_source optimize | source"),
}
DOCUMENT = Path(__file__).parents[2] / "docs/ecosystem.md"
# typed, with \t where Tab is pressed -> the words that the shell then has
LINES = {
    "optimize jour\tfir\t": "optimize journal first",
    "optimize diff first sec\t": "optimize diff first second",
    "optimize --runs else\t journal thi\t": "optimize --runs elsewhere/ journal third",
    "optimize doctor --ho\tsim:h2\t": "optimize doctor --host sim:h200-7b",
    "optimize plan --host=gp\t": "optimize plan --host=gpu-1",
    "optimize plan --engine v\t--sampler t\t": "optimize plan --engine vllm --sampler tpe",
    "optimize bench http://127.0.0.1:1 --workload my\t": "optimize bench http://127.0.0.1:1 --workload my-load.toml",
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    for name in ("runs/first", "runs/second", "elsewhere/third"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "journal.db").touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpu-1\n  User me\n")
    (tmp_path / "my-load.toml").touch()
    return tmp_path


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, here: Path) -> Iterator[tuple[str, Terminal]]:
    words, first, line = SHELLS[request.param]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} here")
    assert line in DOCUMENT.read_text(encoding="utf-8")
    env = {"HOME": str(here), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LANG": "C.UTF-8", "PS1": "$ "}
    terminal = Terminal(words, env, here, columns=200)
    terminal.press(f"{first}{line}\rprintf 'rea%s\\n' dy\r".encode())
    terminal.until("ready")
    yield request.param, terminal
    terminal.close()


def typed(terminal: Terminal, line: str, number: int) -> str:
    """The words that the shell has once every Tab was answered: it is made to print them instead of running them."""
    begun = len(terminal.text)
    terminal.press(line.encode() + b"\x01printf '<%s>' \x05\r")
    terminal.press(f"printf 'line{number} %s\\n' done\r".encode())
    end = terminal.until(f"line{number} done", after=begun)
    said = re.findall(r"(?:<[^<>\x1b\r\n]*>)+", terminal.text[begun:end])
    return next((words[1:-1].replace("><", " ") for words in said if words.startswith("<optimize>")), terminal.text[begun:end])


def test_tab_completes_what_was_begun_and_two_show_the_commands_with_what_they_do(shell: tuple[str, Terminal]) -> None:
    name, terminal = shell
    got = {line: typed(terminal, line, number) for number, line in enumerate(LINES)}
    slash = "/" if name != "zsh" else ""  # zsh takes the stroke away where a word follows
    assert got == {line: wanted.replace("elsewhere/", f"elsewhere{slash}") for line, wanted in LINES.items()}
    terminal.press(b"optimize \t\t")
    at = terminal.until(f"line{len(LINES) - 1} done")
    for command in ("diagnose", "tradeoff", "why-not"):
        terminal.until(command, after=at)
    if name != "bash":  # which shows words alone
        terminal.until("Rank what may limit a server, from", after=at)
