"""Secrets of a launch command: found again by a resumed process, or asked for; never launched as their placeholder."""

import asyncio
from pathlib import Path

import pytest

from optimizer.errors import NeedsOperator
from optimizer.redact import Redactor, mark
from optimizer.report.plan_view import plan_text
from optimizer.runner.execute import with_secrets
from optimizer.wiring import Options, Roots
from optimizer.wiring.planning import plan_study

KEY, TOKEN = "sup3rs3cretvalue99", "hf_abcdefghij0123456789abcdef"
ARGV = ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--api-key", KEY]


def test_what_the_journal_does_not_hold_is_found_in_the_environment() -> None:
    stored = Redactor().value({"argv": ARGV, "env": {"HF_TOKEN": TOKEN, "NCCL_PROTO": "LL"}})
    assert stored["argv"][-1] == mark(KEY)
    argv, env = with_secrets(stored["argv"], {**stored["env"], "GONE": None}, {"ANY": KEY, "OTHER": TOKEN, "EMPTY": ""})
    assert argv == ARGV
    assert env == {"HF_TOKEN": TOKEN, "NCCL_PROTO": "LL", "GONE": None}


def test_what_is_missing_is_named_and_nothing_is_launched() -> None:
    stored = Redactor().value({"argv": ARGV, "env": {"HF_TOKEN": TOKEN}})
    with pytest.raises(NeedsOperator, match=r"--api-key, HF_TOKEN") as error:
        with_secrets(stored["argv"], stored["env"], {"PATH": "/bin"})
    assert "optimize resume" in error.value.hint


def test_a_command_without_secrets_is_left_as_it_is() -> None:
    assert with_secrets(["a", "b=1"], {"X": "1", "Y": None}, {}) == (["a", "b=1"], {"X": "1", "Y": None})


def test_plan_shows_no_secret(tmp_path: Path) -> None:
    launch = f"HF_TOKEN={TOKEN} {' '.join(ARGV)}"
    found = asyncio.run(plan_study(Options(host="sim:h200-7b", launch=launch), Roots(runs=tmp_path)))
    assert f"Target       {found['target']} (not given: the simulated box's own; --target sets another)" in plan_text(found)  # every value that was not given
    assert all(len(line) <= 70 or len(line.split()) == 1 for line in plan_text(found, 70).splitlines() if "sk-" not in line)
    assert KEY not in str(found)
    assert TOKEN not in str(found)
    assert list(tmp_path.iterdir()) == []
