"""Recordings of real servers: next to the project, or the committed copies in tests/recordings."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PLACES = (ROOT / ".." / "shared" / "recordings", ROOT / "tests" / "recordings")
HELP = {
    "0.5.12": "sglang-0.5.12-h200/help.txt",
    "0.5.23": "sglang-0.5.23-cpu/help.txt",
    "0.32.0": "vllm-0.32-cpu/help.txt",
}


def recordings() -> Path:
    for place in PLACES:
        if all((place / name).exists() for name in HELP.values()):
            return place
    pytest.skip("no recordings here", allow_module_level=True)


def help_text(version: str) -> str:
    return (recordings() / HELP[version]).read_text(encoding="utf-8")


def launches() -> list[Path]:
    return sorted(path for path in recordings().glob("*/*/launch.json") if load(path)["engine"] in ("sglang", "vllm"))


def load(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
