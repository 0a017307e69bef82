"""An autonomous, hypothesis-driven performance optimizer for LLM inference servers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizer.api import (
        OptimizerError,
        Options,
        compare,
        diagnose,
        doctor,
        plan,
        replay,
        report_document,
        resume,
        run,
        story,
        studies,
        why,
        why_not,
    )

__version__ = "0.1.0"
__all__ = [
    "OptimizerError", "Options", "compare", "diagnose", "doctor", "plan", "replay", "report_document", "resume", "run", "story", "studies", "why", "why_not",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The library's names on first use: `import optimizer` alone, as every command does it, loads nothing."""
    if name in __all__:
        from optimizer import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What a prompt or an editor completes."""
    return [*__all__, "__version__"]
