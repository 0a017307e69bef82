"""What earlier studies made of predictions: measured against predicted, by cause, engine and class of box. Sums only, so that
files of several people add up; nothing in it names a machine, a model or a study."""

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen
from optimizer.model.playbook import EngineName


class Learned(Frozen):
    """``held``: tests in which the cure paid off. The sums are over those: ln of the measured ratio over the middle of the
    predicted one, so 0 is a prediction that was right and -0.7 one that promised twice too much."""

    cause: str
    engine: EngineName
    box: str  # e.g. "NVIDIA H200 x8"
    tests: int = Field(ge=1)
    held: int = Field(ge=0)
    sum_ln: FiniteFloat = 0.0
    sum_squares: FiniteFloat = Field(default=0.0, ge=0)
