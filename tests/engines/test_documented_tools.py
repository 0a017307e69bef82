"""`optimize bench --with TOOL`, as docs/bench.md has it, with the tool itself where it is installed: the load, the options and the
result file are the tool's own."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launch

CLIENTS = REPOSITORY / ".clients"
# Where each tool is installed here, and how it starts there.
STARTS = {"vllm": (REPOSITORY / ".engines/vllm/bin/python", str(Path(__file__).with_name("vllm_bench.py"))), "guidellm": (CLIENTS / "guidellm/bin/guidellm", "run"), "aiperf": (CLIENTS / "aiperf/bin/aiperf", "profile")}
WITH = [
    words
    for line in re.findall(r"^\$ (optimize bench .*--with .*)$", (REPOSITORY / "docs/bench.md").read_text(encoding="utf-8"), re.MULTILINE)
    if (words := shlex.split(line))
]

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]


@pytest.mark.parametrize("words", WITH, ids=lambda words: f"{words[words.index('--with') + 1]}-on-vllm")
def test_a_documented_load_tool_measures(words: list[str], shared_vllm: Launch, tmp_path: Path) -> None:
    name = words[words.index("--with") + 1]
    program, verb = STARTS[name]
    if not program.exists():
        pytest.skip(f"{name} is not installed here")
    given = {"--with-command": f"{program} {verb}", "--tokenizer": str(shared_vllm.model), "--requests": "12", "--concurrency": "4",
             "--prompt-tokens": "32", "--output-tokens": "16"}  # fmt: skip
    kept = [word for at, word in enumerate(words) if word not in given and (at == 0 or words[at - 1] not in given)]
    asked = [f"http://127.0.0.1:{shared_vllm.port}" if word.startswith("http://") else word for word in kept]
    done = subprocess.run([sys.executable, "-m", "optimizer", *asked[1:], *(part for pair in given.items() for part in pair), "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    [point] = json.loads(done.stdout)["points"]
    assert point["requests_ok"] == 12 and point["metrics"]["output_tokens_per_s"] > 0
