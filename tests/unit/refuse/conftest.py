"""The project's own spaces, dead settings and rules, and the builds of the recordings."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from optimizer.core.refuse import Ground
from optimizer.engines.registry import engine
from optimizer.knowledge.library import Library, build_library
from optimizer.knowledge.load import load_yaml
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.flags import FlagTable
from optimizer.model.settings import Settings

ROOT = Path(__file__).parents[3]
HELP = {
    "0.5.12": "sglang-0.5.12-h200/help.txt",
    "0.5.23": "sglang-0.5.23-cpu/help.txt",
    "0.32.0": "vllm-0.32-cpu/help.txt",
}


def recordings() -> Path:
    for place in (ROOT / ".." / "shared" / "recordings", ROOT / "tests" / "recordings"):
        if all((place / name).exists() for name in HELP.values()):
            return place
    pytest.skip("no recordings here", allow_module_level=True)


@cache
def library() -> Library:
    """Spaces, dead settings and rules only: the rest of the knowledge is not needed here."""
    names = [*ROOT.glob("search_spaces/**/*.yaml")]
    names += [*ROOT.glob("playbooks/*/dead.yaml"), *ROOT.glob("playbooks/*/constraints.yaml")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in names}
    return build_library({name: load_yaml(text, name) for name, text in texts.items()}, texts)


@cache
def table(version: str) -> FlagTable:
    if version.startswith("llamacpp"):
        return engine("llamacpp").flags((ROOT / "tests/recordings" / f"{version}-cpu/help.txt").read_text(encoding="utf-8"))
    name = "vllm" if version == "0.32.0" else "sglang"
    return engine(name).flags((recordings() / HELP[version]).read_text(encoding="utf-8"))


def facts(**values: Value) -> Evidence:
    return Evidence(facts=tuple(Fact(name=name.replace("__", "."), value=value) for name, value in values.items()))


def ground(version: str = "0.5.12", given: dict[str, Value] | None = None, **more: Any) -> Ground:
    name = "vllm" if version == "0.32.0" else "sglang"
    parts: dict[str, Any] = {
        "settings": Settings(values=given or {}),
        "evidence": facts(gpu__count=2, parallel__nodes=1),
        "flags": table(version),
        "dead": library().dead_for(name),
        "constraints": library().constraints_for(name),
        "spaces": [space for space in library().spaces if space.engine in ("any", name)],
        "engine_version": version,
    }
    return Ground(**{**parts, **more})
