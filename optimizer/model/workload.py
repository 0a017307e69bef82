"""What load a measurement offers. Two measurements compare only within one workload."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen


class Workload(Frozen):
    """Closed loop of unique prompts with fixed lengths. Times are in the server's seconds (a simulated box may run faster)."""

    name: str = "default"
    concurrency: int = Field(default=16, ge=1, le=65536)
    side_levels: tuple[int, ...] = (1,)  # measured as well at every launch, reported beside the target level
    prompt_tokens: int = Field(default=512, ge=1, le=1_000_000)
    output_tokens: int = Field(default=256, ge=1, le=1_000_000)
    shared_prefix_tokens: int = Field(default=0, ge=0)
    api: Literal["completions", "chat"] = "completions"
    vocabulary: Literal["words", "ascii"] = "words"
    warmup_min_s: FiniteFloat = Field(default=30.0, ge=0)
    warmup_max_s: FiniteFloat = Field(default=300.0, ge=0)
    window_s: FiniteFloat = Field(default=60.0, gt=0)
    side_window_s: FiniteFloat = Field(default=20.0, gt=0)
    confirm_window_s: FiniteFloat = Field(default=600.0, gt=0)

    @property
    def text(self) -> str:
        shared = f", {self.shared_prefix_tokens} of them shared" if self.shared_prefix_tokens else ", no shared prefix"
        return f"concurrency {self.concurrency}, {self.prompt_tokens} prompt tokens{shared}, {self.output_tokens} output tokens"
