"""What mkdocs needs beyond its configuration: links to files of the tree outside docs/ become their names (the site does not carry
them), and docs/errors.md gets the list of all messages, which would be stale too often if it were committed."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import errors_table

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)[^)]*\)")
log = logging.getLogger("mkdocs.hooks")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    def named(match: re.Match[str]) -> str:
        target = (ROOT / "docs" / page.file.src_uri).parent / match[2]
        if not target.exists():
            log.warning("%s: there is no %s", page.file.src_uri, match[2])
        name = target.resolve().relative_to(ROOT).as_posix() if target.resolve().is_relative_to(ROOT) else match[2]
        return match[1] if name in match[1] else f"{match[1]} (`{name}`)"

    if page.file.src_uri == "errors.md":
        markdown = markdown.replace("<!-- messages -->", _messages())
    return OUTSIDE.sub(named, markdown)


def _messages() -> str:
    lines = ["## Every message", "", "As in the code of this release; `…` stands for a value.", "", "| error | what happened | why it matters | what to do |", "|---|---|---|---|"]
    for kind, message, why, hint in errors_table.messages():
        lines.append(f"| `{kind}` | {_cell(message)} | {_cell(why)} | {_cell(hint)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "&#91;").replace("*", "\\*").replace("_", "\\_")
