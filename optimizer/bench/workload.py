"""From a declared workload to the prompts and the run plan that offer it. Pure: the same workload, seed and salt give
the same prompts on every machine. The generator of the texts itself lies in ``loadgen.py``, which must be one file;
nothing is duplicated here.

The salt names the launch (study, launch and run index): prompt heads differ between runs, so no cache of an earlier
run can help; prompt bodies depend on the seed alone, so that every arm of a comparison is offered the same work.
"""

from typing import Any

from optimizer.bench.loadgen import ASCII, WORDS, Prompts
from optimizer.model.workload import Workload

__all__ = ["ASCII", "WORDS", "declared_cached_share", "job_prompts", "prompts", "salt_of"]


def salt_of(*parts: object) -> str:
    """One salt from what identifies a run, such as (study, launch index, run index)."""
    return "/".join(str(part) for part in parts)


def job_prompts(workload: Workload, seed: int | str, salt: str) -> dict[str, Any]:
    """The part of a job from which the load generator makes its prompts."""
    return {
        "seed": str(seed),
        "salt": salt,
        "vocabulary": workload.vocabulary,
        "prompt_tokens": workload.prompt_tokens,
        "shared_prefix_tokens": workload.shared_prefix_tokens,
    }


def prompts(workload: Workload, seed: int | str, salt: str, count: int) -> list[str]:
    """The first ``count`` prompts of a run, e.g. for probes."""
    made: Any = Prompts(**job_prompts(workload, seed, salt))  # type: ignore[no-untyped-call]
    return [str(made.text(index)) for index in range(count)]


def declared_cached_share(workload: Workload) -> float:
    """Share of the prompt tokens that the workload itself lets a prefix cache serve, 0 to 1."""
    return min(workload.shared_prefix_tokens, workload.prompt_tokens) / workload.prompt_tokens
