"""What a shell may complete beside words of the program: studies that are there, and boxes that could be meant. Light, as it runs at every
Tab; what cannot be read is left out."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_HOST = re.compile(r"^\s*Host\s+(.+)$", re.IGNORECASE | re.MULTILINE)


def study_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the studies under ``--runs``, newest first; those of a database are not asked for."""
    given = ctx.find_root().params.get("runs") or os.environ.get("OPTIMIZE_RUNS") or "runs"
    found = [path for pattern in ("*/journal.db", "recorded/*/journal.db") for path in Path(given).glob(pattern)]
    return [CompletionItem(path.parent.name) for path in sorted(found, key=_newest) if path.parent.name.startswith(incomplete)]


def _newest(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0


def box_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """``localhost``, the described hosts, aliases of the SSH configuration without wildcards, and the simulated boxes."""
    from optimizer.engines.simulator.box import BOXES

    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "optimize/hosts"
    names = ["localhost", *(path.stem for folder in (Path("hosts"), config) for path in sorted(folder.glob("*.toml")))]
    try:
        text = (Path.home() / ".ssh/config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names += [name for line in _HOST.findall(text) for name in line.split() if not set("*?!") & set(name)]
    names += [f"sim:{path.stem}" for path in sorted(BOXES.glob("*.toml"))]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def engine_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from optimizer.engines.registry import engines as known

    return [CompletionItem(name) for name in known() if name.startswith(incomplete)]
