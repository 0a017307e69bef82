"""launch.sh and env.sh, run by a real sh: they start exactly what was measured, and no secret is in them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.engines.base import Command
from optimizer.engines.script import render
from optimizer.redact import may_hold_secret

SHOW = "import json,os,sys; print(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ)}))"


def started(command: Command, folder: Path, settings: dict[str, object] | None = None, **given: str) -> dict[str, object]:
    """What the script starts: its arguments and environment."""
    for name, text in render(command, settings or {}, ["first line\nexec rm -rf /"]).items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], **given}
    done = subprocess.run(["sh", str(folder / "launch.sh")], cwd="/", env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def command(*argv: str, **env: str | None) -> Command:
    return Command(argv=(sys.executable, "-c", SHOW, *argv), env=env)


@pytest.mark.parametrize("word", ["plain", "two words", "it's", '"quoted"', "$HOME `id` $(id)", "a\nb", "", "*", "~", '{"a": [1, 2]}', "ü", "--x=a b", "\\"])
def test_every_word_arrives_as_it_was_measured(word: str, tmp_path: Path) -> None:
    found = started(command("--flag", word, word, VALUE=word), tmp_path)
    assert found["argv"] == ["--flag", word, word]
    assert found["env"]["VALUE"] == word  # type: ignore[index]


def test_settings_are_named_in_comments_and_a_comment_runs_nothing(tmp_path: Path) -> None:
    started(command(), tmp_path, {"max_running_requests": 32, "evil": "x\nexit 3"})
    assert "# max_running_requests = 32" in (tmp_path / "launch.sh").read_text().splitlines()


def test_a_variable_is_unset(tmp_path: Path) -> None:
    assert "NCCL_ALGO" not in started(command(NCCL_ALGO=None), tmp_path, NCCL_ALGO="Tree")["env"]  # type: ignore[operator]


SECRET = "s3cr3t-" + "0123456789abcdef"
HELD = [
    (("--api-key", SECRET), {}, "API_KEY"), ((f"--api-key={SECRET}",), {}, "API_KEY"), (("--hf-token", SECRET), {}, "HF_TOKEN"),
    (("--auth", SECRET), {}, "AUTH"), ((), {"HF_TOKEN": SECRET}, "HF_TOKEN"), ((), {"GITHUB_PAT": SECRET}, "GITHUB_PAT"),
    ((), {"APP_COOKIE": SECRET}, "APP_COOKIE"), ((), {"STORE": f"postgres://user:{SECRET}@db/x"}, "STORE"),
    (("--store", f"postgres://user:{SECRET}@db/x"), {}, "STORE"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "env", "variable"), HELD)
def test_a_secret_is_asked_for_and_never_written(argv: tuple[str, ...], env: dict[str, str], variable: str, tmp_path: Path) -> None:
    held = command(*argv, **env)
    with pytest.raises(AssertionError, match=variable):  # sh says which variable is missing
        started(held, tmp_path)
    assert SECRET not in (tmp_path / "launch.sh").read_text() + (tmp_path / "env.sh").read_text()
    value = next((text for text in (*env.values(), argv[-1] if argv else "") if text), "").removeprefix("--api-key=")
    found = started(held, tmp_path, **{variable: value})
    assert found["argv"] == list(argv)
    assert all(found["env"][name] == text for name, text in env.items())  # type: ignore[index]


@pytest.mark.parametrize("hidden", ["«secret:0»", "«secret»", "«redacted:0badcafe»"])
def test_what_was_hidden_on_the_box_is_asked_for(hidden: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="STORE"):
        started(command("--model", "/m", STORE=hidden), tmp_path)
    assert started(command("--model", "/m", "--store", hidden), tmp_path, STORE="real")["argv"] == ["--model", "/m", "--store", "real"]


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "--api-key", "HF_TOKEN", "hf_token", "TOKEN", "AWS_SESSION_TOKEN", "MY_COOKIE", "DB_PASSWD", "SENTRY_DSN"])
def test_names_that_may_hold_a_secret(name: str) -> None:
    assert may_hold_secret(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "SGLANG_INIT_NEW_TOKEN_RATIO", "max_num_batched_tokens", "--tokenizer-mode", "num_speculative_tokens",
     "speculative_num_draft_tokens", "speculative_token_map", "NCCL_PROTO", "kv_cache_dtype", "path", "VLLM_USE_V1"],
)  # fmt: skip
def test_names_of_plain_settings(name: str) -> None:
    assert not may_hold_secret(name)
