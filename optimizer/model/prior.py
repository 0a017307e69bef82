"""What is known from elsewhere: a known-good result, and the launches of earlier studies. Recorded when a study opens, so that its
journal says by itself what the study knew."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen, Value


class Origin(Frozen):
    """Where a result was measured: what has to be alike before it says anything here."""

    name: str  # the study, or what the file calls itself
    kind: Literal["study", "file"] = "study"
    source: str
    engine: str
    engine_version: str | None = None
    model: str = ""  # last part of its path or hub name
    model_class: str = ""  # architecture, layers and width; empty where its config.json was not read
    gpu: str | None = None
    gpu_count: int = Field(default=0, ge=0)
    cpus: int = 0  # told apart by it where there is no GPU
    simulated: bool = False
    metric: str = "output_tokens_per_s"
    concurrency: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class PriorArt(Origin):
    """A known-good result. ``settings`` is the whole launch as parameters; ``chosen`` names those that were picked on purpose rather
    than found there.

    ``before`` and ``after`` are values of ``metric`` at ``concurrency``; ``before`` None: nobody says. ``low`` to ``high``: the 95 %
    interval of ``after`` over ``launches``; None and 0 where that is not known."""

    before: FiniteFloat | None = None
    after: FiniteFloat | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    launches: int = Field(default=0, ge=0)
    settings: dict[str, Value] = Field(default_factory=dict)
    chosen: tuple[str, ...] = ()


class EarlierArm(Frozen):
    """One setting that an earlier study launched. ``ln``: of its metric over that study's own first baseline, more is better; None: it
    does not run there."""

    settings: dict[str, Value]
    ln: FiniteFloat | None = None


class EarlierStudy(Origin):
    """The launches of an earlier study: where a sampler starts from. ``given`` is what its original command line said."""

    given: dict[str, Value] = Field(default_factory=dict)
    arms: tuple[EarlierArm, ...] = ()
