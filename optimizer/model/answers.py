"""What a launch answered to the fixed greedy probes, and how two settings' answers compare. Plain data: asking is the
runner's business, judging the core's."""

from typing import Literal

from pydantic import Field

from optimizer.model.base import FiniteFloat, Frozen

# Different subjects and forms on purpose: what a lossy setting damages first (digits, code, long-range copying) is in it.
PROBES = (
    "The capital of France is",
    "Question: A farmer has 17 sheep and buys 26 more, then sells 9. How many sheep are left? Answer:",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Translate into German: The weather is nice today, and we are going to the lake.\nGerman:",
    "List the planets of the solar system in order of their distance from the sun: 1.",
    "{\"name\": \"Ada\", \"born\": 1815, \"languages\": [\"English\",",
    "Copy this line exactly: 7f3a 91c2 04be d85e 6a17\nCopy:",
    "Once upon a time, in a village at the edge of a great forest, there lived",
)
PROBE_TOKENS = 32
# In 16-bit floats logits of 16 to 32 are 0.125 apart; half a nat is four such steps.
TIE_NATS = 0.5
MOST_PROBES, FEWEST_PROBES = 64, 4
# How often a launch is asked. Six against five repetitions are the fewest that settle a single probe of eight
# (``stats.agreement.chance_of_separation``); equal numbers would need one more of each.
BASELINE_PASSES, CANDIDATE_PASSES = 6, 5


class ProbeAnswer(Frozen):
    """One greedy answer. ``margins``: ln probability of each token over the runner-up's, in nats; empty where the server
    gives no log probabilities. ``tokens`` are words of the text then. ``close``: by place, the tokens that were less than
    ``TIE_NATS`` behind the chosen one; places without any are left out."""

    tokens: tuple[str, ...]
    margins: tuple[FiniteFloat, ...] = ()
    close: dict[int, tuple[str, ...]] = Field(default_factory=dict)


class AnswerPass(Frozen):
    """Every probe once, in order; None for a probe that got no answer. ``probes`` is the digest of the prompts. ``repeat``: the how
    manieth pass of this launch it is, from 1; 0 in records from before launches were asked more than twice."""

    probes: str
    answers: tuple[ProbeAnswer | None, ...]
    repeat: int = 0


class AnswerComparison(Frozen):
    """``same``: every probe is answered as before, up to choices that are ties for the model itself. ``changed``: more
    probes differ than the reference differs from itself, or some differ each time. ``cannot_tell``: neither is shown."""

    verdict: Literal["same", "changed", "cannot_tell"]
    prompts: int  # compared with each other
    settled: int  # of them, those that the reference itself repeats for long enough to compare with
    differing: int
    near_ties: int  # differ first where the model itself had no clear preference
    reference_differing: int  # prompts on which the reference contradicts itself
    agreement: FiniteFloat = Field(ge=0, le=1)  # mean share of the tokens before the first difference
    reference_agreement: FiniteFloat = Field(ge=0, le=1)
    chance: FiniteFloat = Field(ge=0, le=1)  # of so many differing prompts if the setting changed nothing
    why: str
