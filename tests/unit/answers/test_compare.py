"""Whether a setting changes the answers: by how far the server as found agrees with itself, never by a single tie."""

import random
from itertools import combinations, product
from math import comb

import pytest

from optimizer.core.answers import compare
from optimizer.model.answers import BASELINE_PASSES, CANDIDATE_PASSES, AnswerPass, ProbeAnswer
from optimizer.stats.agreement import chance_of_as_many, chance_of_separation


def answer(words: str, margin: float = 3.0, **at: float) -> ProbeAnswer:
    """``at``: margins at single places, as ``t5=0.1``."""
    tokens = tuple(words.split())
    margins = [margin] * len(tokens)
    for place, value in at.items():
        margins[int(place[1:])] = value
    return ProbeAnswer(tokens=tokens, margins=tuple(margins))


def one_pass(*answers: ProbeAnswer | None, probes: str = "p") -> AnswerPass:
    return AnswerPass(probes=probes, answers=answers)


TEXTS = [" ".join(f"w{index}-{place}" for place in range(12)) for index in range(8)]
BEFORE = [one_pass(*map(answer, TEXTS))] * 2


def changed(count: int, at: int = 5, **margins: float) -> list[AnswerPass]:
    """The first ``count`` probes are answered differently from token ``at`` on."""
    rows = []
    for index, text in enumerate(TEXTS):
        words = text.split()
        rows.append(answer(" ".join([*words[:at], *(["other"] * (len(words) - at) if index < count else words[at:])]), **margins))
    return [one_pass(*rows)]


def test_the_same_answers_are_the_same() -> None:
    found = compare(BEFORE, BEFORE[:1])
    assert found is not None and found.verdict == "same"
    assert found.agreement == 1.0 and found.differing == 0


@pytest.mark.parametrize(("count", "verdict"), [(1, "cannot_tell"), (3, "cannot_tell"), (4, "changed"), (8, "changed")])
def test_it_takes_four_of_eight_against_a_reference_that_repeats_itself(count: int, verdict: str) -> None:
    found = compare(BEFORE, changed(count))
    assert found is not None and found.verdict == verdict
    assert found.differing == count
    assert str(count) in found.why


def again(passes: list[AnswerPass], times: int) -> list[AnswerPass]:
    """The first of ``passes``, asked ``times`` times in one launch."""
    return [passes[0].model_copy(update={"repeat": index + 1}) for index in range(times)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_a_probe_that_is_answered_otherwise_each_time_is_a_change_however_few_they_are(count: int) -> None:
    found = compare(again(BEFORE, BASELINE_PASSES), again(changed(count), CANDIDATE_PASSES))
    assert found is not None and found.verdict == "changed" and found.differing == count and found.chance <= 0.0175 / count
    assert f"{count} of 8 probes are answered differently each time (asked 6 times as found, 5 times so)" in found.why


@pytest.mark.parametrize("count", [1, 3, 8])
def test_once_as_before_in_five_is_as_before(count: int) -> None:
    now = [*again(changed(count), 4), BEFORE[0].model_copy(update={"repeat": 5})]
    found = compare(again(BEFORE, BASELINE_PASSES), now)
    assert found is not None and found.verdict == "same" and found.differing == 0


@pytest.mark.parametrize(("before", "now"), [(6, 1), (2, 5), (3, 3), (4, 3)])
def test_too_few_repetitions_leave_a_few_odd_probes_undecided(before: int, now: int) -> None:
    found = compare(again(BEFORE, before), again(changed(2), now))
    assert found is not None and found.verdict == "cannot_tell" and "ask more" in found.why
    old = compare(BEFORE * 3, changed(2) * 5)  # records that do not say what is a repetition are judged as they were
    assert old is not None and old.verdict == "cannot_tell" and old.chance == pytest.approx(chance_of_as_many(2, 8, 0, 8))


def test_ties_and_words_are_no_change_by_repetition() -> None:
    tied = [one_pass(*(answer(text, t5=0.2) for text in TEXTS))]
    found = compare(again(tied, 6), again(changed(2), 5))
    assert found is not None and found.verdict == "same" and found.near_ties == 2
    bare = [one_pass(*(ProbeAnswer(tokens=tuple(text.split())) for text in TEXTS))]
    other = [one_pass(*(ProbeAnswer(tokens=one.tokens) for one in changed(2)[0].answers if one))]
    words = compare(again(bare, 6), again(other, 5))  # another kernel takes its ties the same way each time
    assert words is not None and words.verdict == "cannot_tell"


def test_a_difference_where_the_model_had_no_preference_is_no_change() -> None:
    """All eight leave the old text, each at a tie of the reference: another kernel does that."""
    before = [one_pass(*(answer(text, t5=0.2) for text in TEXTS))] * 2
    found = compare(before, changed(8))
    assert found is not None and found.verdict == "cannot_tell" and found.near_ties == 8 and found.differing == 0
    few = compare(before, changed(2))
    assert few is not None and few.verdict == "same" and few.near_ties == 2


def test_a_tie_goes_to_a_token_that_was_in_reach() -> None:
    """Other weights take any token; another kernel takes one that was nearly as likely."""
    def tied(*names: str) -> list[AnswerPass]:
        return [one_pass(*(answer(text, t5=0.2).model_copy(update={"close": {5: names}}) for text in TEXTS))] * 2

    assert compare(tied("other", "third"), changed(8)).near_ties == 8  # type: ignore[union-attr]
    found = compare(tied("third"), changed(8))
    assert found is not None and found.verdict == "changed" and found.near_ties == 0


def test_without_log_probabilities_every_difference_counts() -> None:
    bare = [one_pass(*(ProbeAnswer(tokens=tuple(text.split())) for text in TEXTS))] * 2
    assert compare(bare, changed(8)).verdict == "changed"  # type: ignore[union-attr]


def test_a_reference_that_contradicts_itself_cannot_tell() -> None:
    before = [*BEFORE[:1], *changed(5)]
    found = compare(before, changed(8, at=3))
    assert found is not None and found.verdict == "cannot_tell"
    assert "contradicts itself on 5 of 8" in found.why and found.reference_differing == 5


def test_a_difference_behind_the_references_own_is_not_held_against_the_setting() -> None:
    """Two of the reference's answers part at token 6; the candidate parts there as well, and nowhere else."""
    before = [*BEFORE[:1], *changed(2, at=6)]
    found = compare(before, changed(2, at=7))
    assert found is not None and found.verdict == "same"


def test_the_references_own_rate_is_what_counts() -> None:
    """Four of eight would be a change, but the reference does it with three of eight by itself."""
    before = [*BEFORE[:1], *changed(3, at=8)]
    found = compare(before, changed(4, at=2))
    assert found is not None and found.verdict == "cannot_tell" and found.chance > 0.05


def test_an_answer_that_ends_early_differs() -> None:
    short = [one_pass(*(answer(" ".join(text.split()[:6])) for text in TEXTS))]
    assert compare(BEFORE, short).verdict == "changed"  # type: ignore[union-attr]


def test_what_was_not_asked_is_not_compared() -> None:
    assert compare([], BEFORE) is None
    assert compare(BEFORE, []) is None
    assert compare(BEFORE, [one_pass(*map(answer, TEXTS), probes="others")]) is None
    once = compare(BEFORE[:1], changed(8))
    assert once is not None and once.verdict == "cannot_tell" and "once" in once.why
    gaps = compare(BEFORE, [one_pass(*map(answer, TEXTS[:3]), *[None] * 5)])
    assert gaps is not None and gaps.verdict == "cannot_tell" and "3 of 8" in gaps.why


def test_false_alarms_stay_rare_whatever_the_servers_own_noise() -> None:
    """Servers that flip each probe with a chance of their own, at decisive places: the setting changes nothing."""
    rng = random.Random(5)
    for chance in (0.0, 0.05, 0.1, 0.2, 0.3):
        def asked(chance: float = chance) -> AnswerPass:
            rows = []
            for text in TEXTS:
                words = text.split()
                if rng.random() < chance:
                    at = rng.randrange(12)
                    words[at:] = [f"x{rng.random()}"] * (12 - at)
                rows.append(answer(" ".join(words)))
            return one_pass(*rows)

        alarms = sum(compare([asked(), asked()], [asked()]).verdict == "changed" for _ in range(1500))  # type: ignore[union-attr]
        assert alarms / 1500 <= 0.05, chance

        def often(times: int) -> list[AnswerPass]:
            return [asked().model_copy(update={"repeat": index + 1}) for index in range(times)]

        alarms = sum(compare(often(6), often(5)).verdict == "changed" for _ in range(100))  # type: ignore[union-attr]
        assert alarms <= 5, chance


def test_a_real_change_is_found_beside_the_servers_own_noise() -> None:
    rng = random.Random(6)
    found = 0
    for _ in range(500):
        def noisy(rows: list[str]) -> AnswerPass:
            return one_pass(*(answer(text if rng.random() > 0.05 else text + " tail") for text in rows))

        other = [" ".join([*text.split()[:6], "lossy", "text"]) if rng.random() < 0.9 else text for text in TEXTS]
        found += compare([noisy(TEXTS), noisy(TEXTS)], [noisy(other)]).verdict == "changed"  # type: ignore[union-attr]
    assert found / 500 >= 0.9


def test_separation_by_counting_all_ways() -> None:
    """Every way to name the reference of 2 or 3 against 2 or 3 repetitions of up to three kinds; the worst split is within the bound."""
    for before, now in ((2, 2), (3, 2), (2, 3), (3, 3)):
        everyone = range(before + now)
        worst = 0.0
        for kinds in product((0, 1, 2), repeat=before + now):
            ways = [named for named in combinations(everyone, before)
                    if len({kinds[one] for one in named}) == 1 and all(kinds[one] != kinds[named[0]] for one in everyone if one not in named)]  # fmt: skip
            worst = max(worst, len(ways) / comb(before + now, before))
        assert worst == pytest.approx(chance_of_separation(1, 1, now, before))
    assert chance_of_separation(1, 8, 5, 6) == pytest.approx(8 / 462)
    assert chance_of_separation(1, 8, 5, 5) > 0.05 and chance_of_separation(0, 8, 5, 6) == chance_of_separation(3, 8, 0, 2) == 1.0


def test_fishers_test() -> None:
    assert chance_of_as_many(4, 8, 0, 8) == pytest.approx(0.0385, abs=1e-4)
    assert chance_of_as_many(3, 8, 0, 8) == pytest.approx(0.1, abs=1e-4)
    assert chance_of_as_many(0, 8, 0, 8) == 1.0
    assert chance_of_as_many(8, 8, 8, 8) == 1.0
