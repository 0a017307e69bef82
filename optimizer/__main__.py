"""``python -m optimizer``, and the command ``optimize``."""

import sys
from types import TracebackType


def main() -> None:
    """The command line. Ctrl-C while it is still being loaded ends it as quietly as later; what nobody foresaw is said to be a bug."""
    sys.excepthook = _bug
    try:
        from optimizer.cli import main as command

        command()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback for whoever mends it, then the three parts that every error has."""
    import json

    sys.__excepthook__(kind, error, trace)
    parts = {
        "message": f"{kind.__name__}: {error}. This is a bug.",
        "why": "The command ended before its work was done. A study that it drove is open, and the guard on its box restores the box.",
        "hint": "Report it with the lines above. `optimize resume STUDY` goes on with a study, `optimize stop STUDY` ends it.",
    }
    if "--json" in sys.argv:
        print(json.dumps({"error": {"kind": "OptimizerError", **parts}}))
    print("optimize: " + "\n".join(parts.values()), file=sys.stderr)


if __name__ == "__main__":
    main()
