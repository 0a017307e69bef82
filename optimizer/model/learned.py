"""What earlier studies made of predictions: measured against predicted, by cause, engine and class of box. They add up, whoever
made them; nothing in it names a machine, a model or a study."""

from typing import Self

from pydantic import Field, model_validator

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.playbook import EngineName


class Learned(Frozen):
    """One test, or the sum of several. ``held``: tests in which the cure paid off. The sums are over those: ln of the measured ratio over the middle of the
    predicted one, so 0 is a prediction that was right and -0.7 one that promised twice too much."""

    cause: str
    engine: EngineName
    box: str  # e.g. "NVIDIA H200 x8"
    tests: int = Field(ge=1)
    held: int = Field(ge=0)
    sum_ln: FiniteFloat = 0.0
    sum_squares: FiniteFloat = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _sums_that_can_be(self) -> Self:
        if self.held > self.tests:
            raise ValueError(f"{self.cause}: {self.held} of {self.tests} tests cannot have paid off")
        if self.held == 0 and (self.sum_ln or self.sum_squares):
            raise ValueError(f"{self.cause}: sums of tests that paid off, and none did")
        if self.held and self.sum_ln**2 > self.held * self.sum_squares + 1e-3:
            raise ValueError(f"{self.cause}: no {self.held} ratios have these sums")
        return self
