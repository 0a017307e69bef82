"""One file is judged beside all the others; a rule that cannot fail and a parameter that nothing knows are refused."""

from pathlib import Path

import pytest

from optimizer.knowledge.lint import lint, lint_one
from optimizer.knowledge.load import find_knowledge, read_files

FILES = read_files(find_knowledge(Path(__file__).parents[3]))
BOOK = """playbook: kv-capacity-queueing
family: capacity
claim: The pool is full.
local: false
prior_db: -10
addresses: queue_cap
evidence:
  - {id: one, group: a, if_true_db: 14, if_false_db: -6, when: WHEN}
predicts: {metric: output_tokens_per_s, ratio: [1.2, 5.0]}
actions:
  - {kind: set, engine: vllm, params: {PARAM: 64}}
tests: [TEST]
discriminating_test: Look.
source: https://example.org
"""
FINE = {"WHEN": "{fact: kv.usage_p95, ge: 0.95}", "PARAM": "max_num_seqs", "TEST": "settings_sweep"}


def _errors(name: str = "elsewhere/mine.yaml", **changed: str) -> list[tuple[int, str]]:
    text = BOOK
    for word, value in {**FINE, **changed}.items():
        text = text.replace(word, value)
    return [(found.line, found.message) for found in lint_one(FILES, name, text) if found.level == "error"]


def test_a_correct_file_has_no_error_under_any_name():
    assert _errors() == []
    assert _errors("zz/mine.yaml") == []
    assert _errors("playbooks/any/facts.yaml") == []


@pytest.mark.parametrize("name", ["a/mine.yaml", "/tmp/kv-capacity-queueing.yaml", "zz.yaml"])
@pytest.mark.parametrize(
    ("changed", "line", "said"),
    [
        ({"WHEN": "{fact: kv.usage_p59, ge: 0.95}"}, 8, "kv.usage_p59 is not in the vocabulary"),
        ({"WHEN": "{fact: kv.usage_p95, eq: full}"}, 8, "kv.usage_p95 can never be 'full' (it is float)"),
        ({"WHEN": "{fact: parallel.disaggregation, eq: both}"}, 8, "parallel.disaggregation can never be 'both'"),
        ({"WHEN": "{fact: kv.usage_p95, labels: {hue: red}, ge: 0.9}"}, 8, "no label hue"),
        ({"TEST": "settings_swep"}, 12, "the test settings_swep is not in the vocabulary"),
        ({"PARAM": "max_num_seks"}, 11, "knows the parameter max_num_seks of vllm (did you mean max_num_seqs?)"),
        ({"PARAM": "compilation_config.cudagraph_mod"}, 11, "knows the parameter compilation_config.cudagraph_mod"),
        ({"PARAM": "max_running_requests"}, 11, "knows the parameter max_running_requests of vllm"),
    ],
)
def test_a_slip_in_one_file_is_found_as_in_the_whole_folder(name: str, changed: dict[str, str], line: int, said: str):
    found = _errors(name, **changed)
    assert [at for at, message in found if said in message] == [line], found


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("{fact: kv.usage_p95, le: 50}", "kv.usage_p95 is 0 to 1, so le 50 always holds"),
        ("{fact: kv.usage_p95, ge: 95}", "kv.usage_p95 is 0 to 1, so ge 95 never holds"),
        ("{fact: kv.usage_p95, ge: 0}", "the rule cannot fail: it always holds"),
        ("{fact: kv.usage_p95, lt: 0}", "the rule cannot fail: it never holds"),
        ("{not: {fact: kv.usage_p95, gt: 1}}", "the rule cannot fail: it always holds"),
        ("{fact: kv.usage_p95, between: [0, 1]}", "the rule cannot fail: it always holds"),
        ("{fact: kv.preemptions, ge: 0}", "the rule cannot fail: it always holds"),
        ("{fact: kv.preemptions, gt: -1}", "kv.preemptions is at least 0, so gt -1 always holds"),
        ("{fact: gpu.sm_util_p50, le: 100}", "the rule cannot fail: it always holds"),
        ("{fact: graphs.disable_flag, in: [true, false]}", "the rule cannot fail: it always holds"),
        (
            "{any: [{fact: kv.preemptions, ge: 3}, {fact: kv.usage_p95, ge: 0}]}",
            "the rule cannot fail: it always holds",
        ),
        ("{all: [{fact: kv.preemptions, ge: 3}, {fact: kv.usage_p95, le: 50}]}", "le 50 always holds"),
    ],
)
def test_a_rule_that_cannot_fail_is_refused_with_its_line(when: str, said: str):
    found = _errors(WHEN=when)
    assert any(at == 8 and said in message for at, message in found), found
    whole = lint(
        {
            **FILES,
            "playbooks/any/kv-capacity-queueing.yaml": BOOK.replace("WHEN", when).replace("PARAM", "max_num_seqs"),
        }
    )
    assert any(one.line == 8 and said in one.message for one in whole)


@pytest.mark.parametrize(
    "when",
    [
        "{fact: kv.usage_p95, ge: 1}",
        "{fact: kv.preemptions, gt: 0}",
        "{fact: host.proc_cpu_pct, ge: 300}",  # one core is 100
        "{fact: decode.rank_imbalance_ratio, ge: 1.5}",
        "{fact: gpu.temperature_c_max, ge: 0}",
        "{all: [{fact: kv.preemptions, ge: 3}, {fact: kv.usage_p95, ge: 0}]}",  # asks whether it was observed
    ],
)
def test_what_can_answer_both_stays(when: str):
    assert _errors(WHEN=when) == []
