"""A flip: a start-up fact of one launch that differs from the baseline's, and which setting is to blame for it."""

from pydantic import Field

from optimizer.model.base import Frozen, Scalar, Value


class Flip(Frozen):
    """``before`` is the baseline's value. ``blame`` names settings: one of them did it; empty means that none did, so the
    box drifted.

    ``minor`` flips are book-keeping (megabytes, single resolved values): printed, but they never confound a
    measurement."""

    fact: str
    labels: dict[str, Scalar] = Field(default_factory=dict)
    before: Value
    after: Value
    unit: str = ""
    blame: tuple[str, ...] = ()
    expected: bool = False  # declared by a space, a constraint rule or a playbook's prediction
    towards_fallback: bool = False
    minor: bool = False
    source: str = ""  # where the candidate's value was read
    line: int | None = None
    why: str = ""

    @property
    def drift(self) -> bool:
        """Nothing was changed and yet the fact differs: the box is not what it was."""
        return not self.blame

    @property
    def confounds(self) -> bool:
        """An unexpected flip makes the measurement answer another question than the one asked."""
        return not self.expected and not self.minor

    @property
    def text(self) -> str:
        """One sentence for the report."""
        cause = (
            "by no setting: drift of the box"
            if self.drift
            else f"by {self.blame[0]}"
            if len(self.blame) == 1
            else f"by one of {', '.join(self.blame)}"
        )
        if self.before is None and self.towards_fallback:
            return f"{self.fact} is {_short(self.after)} (a fallback; {cause})"
        kind = "expected" if self.expected else "towards a fallback" if self.towards_fallback else "unexpected"
        return f"{self.fact} {_short(self.before)} -> {_short(self.after)} ({kind}; {cause})"


def _short(value: Value) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)} values up to {value[-1]}"
    return str(value)
