"""Which rules a study decides by: each rule that later releases changed, with the policy version since which it holds. A journal of an
earlier version is recomputed as it was decided. Pure; it knows the pinned spec and nothing else."""

from typing import Final

from optimizer.model.study import StudySpec

EARLY_STOP: Final = 2  # a candidate's measurement ends with its first windows where they show harm
SCREENED_PROPOSALS: Final = 3  # what a sampler proposes passes the rules that every other change passes
THIRD_RUN: Final = 3  # of a launch whose rate did not settle in two
SECOND_CONFIRMATION: Final = 3  # where the first misses the target by noise
ROOFLINE_SAID: Final = 3  # a measurement that the roofline contradicts is named where nothing is tuned
PROVEN_PERCENTILES: Final = 4  # a percentile of the target is met where the requests prove it, not where it was measured
UNITS_SAID: Final = 4  # what is out of reach, prior art and an idea without a launch are told with unit, launches and interval
WEIGHED_WITH_NOISE: Final = 5  # a measurement moves a belief by the error term and the degrees of freedom of its interval
ARM_NEEDS_A_POINT: Final = 5  # a control arm whose parameters do not exist here ends before its baseline
FRONT_PRUNED: Final = 5  # the search of a front leaves out what only ruled-out causes would change
LIMIT_SAID: Final = 5  # a study that spends its budget says so where the target is out of reach besides
BEST_EFFORT_LOOKS: Final = 5  # with --best-effort an idea is looked at again although nothing reaches the target
STARTABLE: Final = 5  # a value with which the engine never starts here is no value of a space that is sampled
SPACES_SEARCHED: Final = 5  # a cause that paid off goes on: a sampler is asked for further points of its space
LOSS_AS_TOLD: Final = 5  # what is out of reach names the largest loss as the last ceiling entry has it
LABELS_SAID: Final = 5  # an observation in a ranking says which of several of its name it is
SHARED_CREDIT: Final = 5  # of one launch with several causes each is credited with what the others leave open
PROMPTS_TOLD_APART: Final = 6  # what prompts that stop decode take is told apart from decode, in ceilings, drafts and expectations
SIDE_VALIDITY_SAID: Final = 6  # a verdict says of a level beside the target's that one of its measurements is not valid
LEFT_IF_IT_SERVES: Final = 6  # with --finish leave only a server that serves is left; else the one that ran before is brought back
UNMEASURED_IS_OPEN: Final = 6  # an idea of which no launch could be measured is not counted as tried: what it may bring is not known


def decides_by(spec: StudySpec | None, rule: int) -> bool:
    """Whether the study of this spec follows the rule; one that was not opened yet follows none."""
    return spec is not None and spec.policy_version >= rule
