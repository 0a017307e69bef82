"""Debugging aid: ``python -m optimizer.evidence PATH [--json]`` prints the facts of a bundle."""

import json
import sys
from pathlib import Path

from optimizer.errors import OptimizerError
from optimizer.evidence.bundle import read_bundle


def main(arguments: list[str]) -> int:
    paths = [word for word in arguments if not word.startswith("--")]
    if not paths:
        print("usage: python -m optimizer.evidence PATH [--json]", file=sys.stderr)
        return 2
    try:
        bundle = read_bundle(Path(paths[0]))
    except OptimizerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if "--json" in arguments:
        print(json.dumps(bundle.plain(), ensure_ascii=False, indent=1))
        return 0
    for fact in sorted(bundle.evidence.facts, key=lambda item: item.name):
        labels = ",".join(f"{key}={value}" for key, value in fact.labels.items())
        where = f"{fact.source}:{fact.line}" if fact.line else fact.source
        sign = {"at_least": ">= ", "at_most": "<= "}.get(fact.bound or "", "")
        name = fact.name + ("{" + labels + "}" if labels else "")
        print(f"{name:48} {sign}{str(fact.value)[:90]} {fact.unit}  [{fact.basis}] {where}")
    for missing in bundle.evidence.missing:
        print(f"{missing.name:48} missing: {missing.reason}")
    print(f"unrecognised statistics lines: {bundle.evidence.unrecognised_lines}")
    for example in bundle.evidence.unrecognised_examples:
        print("   ", example)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
