"""The table of metrics in docs/telemetry.md, from the code. ``--check``: fail if the page differs."""

from __future__ import annotations

import sys
from pathlib import Path

from optimizer.telemetry.tally import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
HEAD = "| metric | kind | labels | meaning |\n|---|---|---|---|\n"


def table() -> str:
    rows = []
    for name, family in FAMILIES.items():
        shown = f"{name}_total" if family.kind == "counter" else name
        rows.append(f"| `{shown}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.meaning} |\n")
    return "".join(rows)


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    after = rest[rest.index("\n\n") + 1 :]
    wanted = before + HEAD + table() + after
    if "--check" in sys.argv:
        if wanted != text:
            print("docs/telemetry.md is not what the code says: run scripts/docs/metrics_table.py", file=sys.stderr)
        return int(wanted != text)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
