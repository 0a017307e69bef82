"""Simulated studies that are decided by the product's own judge, noise and drift code: one seeded random generator in,
counts out. It prints nothing and knows no thresholds; tests/statistics binds them, run.py prints them."""

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from optimizer.core.judge import drifted, judge
from optimizer.core.weight import Cause, seen, share
from optimizer.model.verdict import Arm, Judgement, JudgePolicy
from optimizer.stats.interval import half_width, standard_error
from optimizer.stats.noise import pooled_noise

Draw = Callable[[random.Random], float]  # one launch's ln(metric) around zero


def normal(sd: float) -> Draw:
    return lambda rng: rng.gauss(0.0, sd)


def heavy(sd: float) -> Draw:
    """Student's t with three degrees of freedom, scaled to ``sd``."""

    def draw(rng: random.Random) -> float:
        chi_square = sum(rng.gauss(0, 1) ** 2 for _ in range(3))
        return sd / math.sqrt(3) * rng.gauss(0, 1) / math.sqrt(chi_square / 3)

    return draw


def lottery(sd: float, share: float = 0.2, loss: float = 0.10) -> Draw:
    """Every fifth spawn is 10 % slow, on top of normal noise."""
    return lambda rng: rng.gauss(0.0, sd) + (math.log1p(-loss) if rng.random() < share else 0.0)


def bimodal(sd: float, within: float = 0.03) -> Draw:
    """Two equally likely speeds per spawn, in total ``sd``; ``within`` is the noise around each."""
    half = math.sqrt(max(sd**2 - within**2, 0.0))
    return lambda rng: rng.gauss(0.0, within) + (half if rng.random() < 0.5 else -half)


def skewed(sd: float) -> Draw:
    """Most launches are near the best, a few are much slower (an exponential tail to the slow side)."""
    return lambda rng: sd * (1.0 - rng.expovariate(1.0))


@dataclass
class Test:
    """How one idea ended: its judgement, and what it cost beyond the first baseline pair."""

    judgement: Judgement
    launches: int
    remeasured: int
    effect: float


@dataclass
class Box:
    """A baseline that is shared by the ideas tested on it."""

    rng: random.Random
    draw: Draw
    policy: JudgePolicy
    baseline: list[float] = field(default_factory=list)
    other_arms: list[Arm] = field(default_factory=list)
    baseline_shift: float = 0.0
    false_drifts: int = 0
    drift: float = 0.0  # log ratio that the box gains with every launch
    clock: int = 0

    def launch(self, effect: float) -> float:
        self.clock += 1
        return self.draw(self.rng) + effect + self.drift * self.clock

    def measure_baseline(self, candidate: Arm) -> bool:
        """One more launch of the baseline; true when it was taken for a drift and the comparator starts anew.

        The noise is pooled over everything launched before it, the ``candidate`` under test included."""
        value = self.launch(self.baseline_shift)
        if len(self.baseline) >= 2:
            noise = pooled_noise([self.arm("baseline", self.baseline), candidate, *self.other_arms], self.policy)
            if drifted(value, self.baseline, noise, self.policy):
                self.baseline = [value]
                self.false_drifts += 1
                return True
        self.baseline.append(value)
        return False

    @staticmethod
    def arm(name: str, values: list[float]) -> Arm:
        return Arm(fingerprint=name, ln_values=tuple(values))

    def test(
        self, effect: float, prediction: tuple[float, float] | None, budget: int, name: str = "candidate", target: float | None = None
    ) -> Test:
        """Test one idea with true log ratio ``effect`` until its judgement is final.

        ``target``: ratio that the study still needs. As in ``core.verdicts``, an idea whose claim and whose target both lie
        beyond its interval gets no further look."""
        values, spent, remeasured = [self.launch(effect)], 1, 0
        while True:
            candidate, comparator = self.arm(name, values), self.arm("baseline", self.baseline)
            noise = pooled_noise([comparator, candidate, *self.other_arms], self.policy)
            judgement = judge(candidate, comparator, noise, prediction, self.policy, budget - spent)
            lost = target is not None and prediction is not None and judgement.high < min(prediction[0], target)
            if judgement.final or lost:
                if len(values) > 1:
                    self.other_arms.append(candidate)
                return Test(judgement, spent, remeasured, effect)
            spent += 1
            if judgement.next_arm == "candidate":
                values.append(self.launch(effect))
            else:
                remeasured += 1
                self.measure_baseline(candidate)


@dataclass
class Cell:
    """Many independent tests of one true effect."""

    verdicts: Counter[str]
    mean_launches: float
    runs: int
    covered: float
    within_two: float  # share promoted within two launches after the baseline pair
    launches: dict[str, float] = field(default_factory=dict)  # mean launches of the tests that ended so

    def share(self, *verdicts: str) -> float:
        return sum(self.verdicts[verdict] for verdict in verdicts) / self.runs

    @property
    def short(self) -> float:
        """Judged short of its prediction: partial, below it, equivalent or harmful."""
        return self.share("partial", "below_prediction", "no_useful_effect", "harmful")


def many_tests(
    ratio: float,
    draw: Draw,
    policy: JudgePolicy,
    runs: int,
    seed: int,
    prediction: tuple[float, float] | None = (1.03, 1.30),
    baselines: int = 2,
    budget: int = 1000,
    target: float | None = None,
    drift: float = 0.0,
) -> Cell:
    """``runs`` fresh boxes, each testing one idea whose true ratio is ``ratio``."""
    rng = random.Random(seed)
    verdicts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    launches, covered, quick = 0, 0, 0
    for _ in range(runs):
        box = Box(rng, draw, policy, drift=drift)
        box.baseline = [box.launch(0.0) for _ in range(baselines)]
        result = box.test(math.log(ratio), prediction, budget, target=target)
        spent[result.judgement.verdict] += result.launches
        verdicts[result.judgement.verdict] += 1
        launches += result.launches
        covered += result.judgement.low <= ratio <= result.judgement.high
        quick += result.judgement.verdict in ("supported", "partial") and result.launches <= 2
    each = {name: spent[name] / count for name, count in verdicts.items()}
    return Cell(verdicts, launches / runs, runs, covered / runs, quick / runs, each)


@dataclass
class Studies:
    """Many A/A studies: no idea has an effect."""

    promoted: float
    false_drift: float
    ideas: float
    remeasured: float
    met: float
    kept: float  # promoted, and the fresh confirmation beat the baseline: what a person is told


def aa_studies(
    draw: Draw,
    policy: JudgePolicy,
    runs: int,
    seed: int,
    launches: int = 20,
    prediction: tuple[float, float] = (1.03, 1.30),
    target_above: float | None = None,
) -> Studies:
    """Studies of ``launches`` launches, the baseline pair and a reserved confirmation included.

    ``target_above``: the target's log distance above the truth; *met* = a promotion's fresh confirmation reaches it."""
    rng, fresh = random.Random(seed), random.Random(seed + 1)
    promoted = drifts = ideas = remeasured = met = kept = 0
    for _ in range(runs):
        box = Box(rng, draw, policy, [draw(rng), draw(rng)])
        left = launches - 2
        if abs(box.baseline[0] - box.baseline[1]) > 3 * policy.prior_sd * math.sqrt(2):
            box.baseline.append(draw(rng))  # E2
            left -= 1
        number = 0
        while left > 1:
            result = box.test(0.0, prediction, left - 1, f"idea{number}")
            number += 1
            left -= result.launches
            remeasured += result.remeasured
            if result.judgement.verdict in ("supported", "partial"):
                promoted += 1
                confirmed = draw(rng if target_above is not None else fresh)
                met += target_above is not None and confirmed >= target_above
                kept += confirmed > sum(box.baseline) / len(box.baseline)
                break
        ideas += number
        drifts += box.false_drifts > 0
    return Studies(promoted / runs, drifts / runs, ideas / runs, remeasured / runs, met / runs, kept / runs)


def quick_exits(draw: Draw, policy: JudgePolicy, runs: int, seed: int) -> float:
    """Share of ideas without effect that the very first launch promotes."""
    rng = random.Random(seed)
    wrong = 0
    for _ in range(runs):
        comparator = Box.arm("baseline", [draw(rng), draw(rng)])
        candidate = Box.arm("candidate", [draw(rng)])
        noise = pooled_noise([comparator], policy)
        if abs(candidate.ln_values[0] - sum(comparator.ln_values) / 2) <= policy.quick_exit_sd * noise.sd:
            continue
        wrong += judge(candidate, comparator, noise, (1.03, 1.30), policy, 100).verdict in ("supported", "partial")
    return wrong / runs


def drift_detections(shift_sd: float, sd: float, policy: JudgePolicy, runs: int, seed: int, others: int = 2) -> float:
    """Share of shifts of ``shift_sd`` times the study's own estimate s that the first re-measurement sees."""
    rng = random.Random(seed)
    seen = 0
    for _ in range(runs):
        values = [rng.gauss(0, sd) for _ in range(others)]
        noise = pooled_noise([Box.arm("baseline", values)], policy)
        seen += drifted(rng.gauss(-shift_sd * noise.sd, sd), values, noise, policy)
    return seen / runs


def coverage(
    draw: Draw, policy: JudgePolicy, runs: int, seed: int, n_candidate: int, n_baseline: int, extra: int = 0
) -> float:
    """Share of 95 % intervals that contain the truth (no effect); ``extra`` arms of two launches are pooled as well."""
    rng = random.Random(seed)
    hit = 0
    for _ in range(runs):
        baseline = [draw(rng) for _ in range(n_baseline)]
        candidate = [draw(rng) for _ in range(n_candidate)]
        pairs = [Box.arm(f"pair{i}", [draw(rng), draw(rng)]) for i in range(extra)]
        noise = pooled_noise([Box.arm("b", baseline), Box.arm("c", candidate), *pairs], policy)
        d = sum(candidate) / n_candidate - sum(baseline) / n_baseline
        half = half_width(0.95, noise.degrees_of_freedom, standard_error(noise.sd, n_candidate, n_baseline))
        hit += abs(d) <= half
    return hit / runs


def winners_curse(ideas: int, draw: Draw, runs: int, seed: int) -> tuple[float, float]:
    """(mean log gain that the best of ``ideas`` equal settings seems to have, the same of its fresh confirmation)."""
    rng = random.Random(seed)
    seemed = fresh = 0.0
    for _ in range(runs):
        seemed += max(draw(rng) for _ in range(ideas))
        fresh += draw(rng)
    return seemed / runs, fresh / runs


@dataclass
class Beliefs:
    """Many hypotheses with known truth: (real, probability before the launches, probability after them, whether the interval holds both no change
    and what is predicted at least)."""

    rows: list[tuple[bool, float, float, bool]] = field(default_factory=list)

    @property
    def bins(self) -> list[tuple[float, float, int]]:
        """(mean probability said, share that is real, hypotheses) in tenths of the probability said; those with nobody left out."""
        found: list[list[tuple[bool, float]]] = [[] for _ in range(10)]
        for real, _, said, _ in self.rows:
            found[min(int(said * 10), 9)].append((real, said))
        return [(math.fsum(p for _, p in one) / len(one), sum(real for real, _ in one) / len(one), len(one)) for one in found if one]

    @property
    def calibration_error(self) -> float:
        """Mean distance between said and seen over the bins, each with its weight."""
        return math.fsum(abs(said - seen) * n for said, seen, n in self.bins) / len(self.rows)

    @property
    def undecided(self) -> "Beliefs":
        return Beliefs([row for row in self.rows if row[3]])

    @property
    def farthest_db(self) -> tuple[float, float]:
        """The largest moves down and up, in decibans."""
        moves = [_db(after) - _db(before) for _, before, after, _ in self.rows]
        return min(moves, default=0.0), max(moves, default=0.0)

    @property
    def brier(self) -> float:
        """Mean squared distance between probability and truth: 0 is best, 0.25 is what saying one half always gives."""
        return math.fsum((said - real) ** 2 for real, _, said, _ in self.rows) / len(self.rows)


PREDICTED = ((1.03, 1.3), (1.1, 1.5), (1.5, 4.0))
BEFORE = (0.2, 0.5, 0.8)  # probabilities of the evidence


def beliefs(draw: Draw, policy: JudgePolicy, runs: int, seed: int, useless: Draw = lambda rng: 0.0) -> Beliefs:
    """Hypotheses tested one by one. A real cause has an effect anywhere in its predicted interval, another one ``useless``."""
    rng, found = random.Random(seed), Beliefs()
    for _ in range(runs):
        before, prediction = rng.choice(BEFORE), rng.choice(PREDICTED)
        real = rng.random() < before
        box = Box(rng, draw, policy)
        box.baseline = [box.launch(0.0), box.launch(0.0)]
        judgement = box.test(_inside(rng, prediction) if real else useless(rng), prediction, 18).judgement
        found.rows.append((real, before, _moved(before, judgement.bayes_db), judgement.low <= 1.0 and judgement.high >= prediction[0]))
    return found


def beliefs_of_bundles(draw: Draw, policy: JudgePolicy, runs: int, seed: int) -> Beliefs:
    """Three causes that are cured in one launch: the effects of those that are real multiply. With ``policy.noise_known`` each is credited
    with the whole launch, as policy versions before 5 did."""
    rng, found = random.Random(seed), Beliefs()
    for _ in range(runs):
        known = {name: Cause(rng.choice((0.3, 0.6, 0.9)), rng.choice(PREDICTED)) for name in "abc"}
        real = {name: rng.random() < cause.probability for name, cause in known.items()}
        effect = math.fsum(_inside(rng, cause.prediction) for name, cause in known.items() if real[name])
        joint = (max(cause.prediction[0] for cause in known.values()), math.prod(cause.prediction[1] for cause in known.values()))
        box = Box(rng, draw, policy)
        box.baseline = [box.launch(0.0), box.launch(0.0)]
        judgement = box.test(effect, joint, 18).judgement
        what = seen(judgement, policy)
        gained = {name: weight.db for name, weight in share(what, known, policy).items()} if what is not None else dict.fromkeys(known, judgement.bayes_db)
        for name, cause in known.items():
            after = _moved(cause.probability, gained[name])
            found.rows.append((real[name], cause.probability, after, judgement.low <= 1.0 and judgement.high >= joint[0]))
    return found


def _inside(rng: random.Random, prediction: tuple[float, float]) -> float:
    return rng.uniform(math.log(prediction[0]), math.log(prediction[1]))


def _db(probability: float) -> float:
    return 10 * math.log10(probability / (1 - probability))


def _moved(before: float, gained_db: float) -> float:
    return 1 / (1 + 10 ** (-(_db(before) + gained_db) / 10))
