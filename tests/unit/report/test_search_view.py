"""How a search went, told from the entries of a study: where it started, what left a space, what was stopped early, what became of a box."""

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from optimizer.cli import main
from optimizer.model.entry import Entry, EntryKind
from optimizer.report.prose import sentence
from optimizer.report.search_view import search_markdown, search_story

RECORDED = sorted(path.parent for path in (Path(__file__).parents[3] / "runs" / "recorded").glob("*/journal.db"))
LOAD = {"concurrency": 16, "window_s": 60.0, "warmup_min_s": 30.0, "side_levels": [1], "side_window_s": 20.0}
SPEC = {
    "workload": LOAD, "boxes": [{"name": "a"}, {"name": "b"}],
    "earlier": [{"name": "before", "arms": [{}, {}]}],
    "prior_art": [{"name": "ours", "kind": "file", "settings": {"mem_fraction_static": 0.9}, "chosen": ["mem_fraction_static", "disable_cuda_graph"]}],
}  # fmt: skip
LEVELS = [{"concurrency": 16, "window_s": 60.0, "warmup_min_s": 30.0}, {"concurrency": 1, "window_s": 20.0, "warmup_min_s": 5.0}]
NOTE = "the first windows decided: stopped after 20 s: 938.4 tokens/s, below 2003"
CHANGE = {"speculative_algorithm": "EAGLE"}
ROWS: list[tuple[EntryKind, str, str | None, dict[str, Any]]] = [
    (EntryKind.OPENED, "", None, {"spec": SPEC}),
    (EntryKind.CHOSEN, "a", None, {"hypothesis": "drafts", "changes": CHANGE, "claim": "c", "space": None}),
    (EntryKind.INTENT, "a", "4", {"step": {"kind": "measure", "launch": "3", "purpose": "candidate", "levels": LEVELS, "stop_below": 2002.9}}),
    (EntryKind.OUTCOME, "a", "4", {"step": "measure", "outcome": {"status": "done", "duration_s": 50.0, "body": {"measurement": {"points": [
        {"concurrency": 16, "window_s": 20.0, "metrics": {"output_tokens_per_s": 938.4}, "notes": [NOTE]}]}}}}),
    (EntryKind.PRUNED, "a", None, {"hypothesis": "drafts", "changes": CHANGE, "verdict": "harmful", "why": "it is slower"}),
    (EntryKind.RANKED, "b", None, {"hypotheses": [], "ruled_out": [{"id": "late", "against": [{"fact": "queue.depth_p95", "value": 0, "db": -20}]}]}),
    (EntryKind.CHOSEN, "b", None, {"hypothesis": "pool", "changes": None, "space": "sglang/memory", "claim": "c",
        "left_out": {"page_size": "ruled out with drafts, late", "kv_cache_dtype": "Not here.", "swa": "ruled out with drafts, late"}}),
    (EntryKind.INTENT, "b", "8", {"step": {"kind": "propose", "space": "sglang/memory", "sampler": "gp", "try_first": [{"mem_fraction_static": 0.95}], "pending": [{}],
        "history": [{"params": {}}, {"params": {}, "note": "study before"}, {"params": {}, "note": "refused before a launch"}]}}),
    (EntryKind.OUTCOME, "b", "8", {"step": "propose", "outcome": {"status": "done", "body": {"params": {"mem_fraction_static": 0.95}, "unimportant": {"page_size": 0.002},
        "left_out": [{"why": "x = 3 is no value of the space", "note": "study before"}]}}}),
    (EntryKind.PRUNED, "b", None, {"hypothesis": "pool", "changes": {"mem_fraction_static": 0.2}, "verdict": "hopeless", "why": "Stopped before it was measured: its KV pool is small."}),
    (EntryKind.CHOSEN, "b", None, {"hypothesis": "other", "changes": {"x": 1}, "claim": "c", "space": None}),
    (EntryKind.NOTE, "b", None, {"lost": True, "text": "It does not answer.", "box": "b"}),
    (EntryKind.CHOSEN, "a", None, {"hypothesis": "other", "changes": {"x": 1}, "claim": "c", "space": None}),
    (EntryKind.NOTE, "b", None, {"back": True, "text": "Tried again, to bring it into its end state.", "box": "b"}),
    (EntryKind.NOTE, "b", None, {"lost": True, "text": "It does not answer.", "box": "b"}),
    (EntryKind.CLOSED, "", None, {"boxes": [{"box": "a", "launches": 2, "minutes": 9.0, "lost": "", "runs": "The best settings serve on a."}, {"box": "b", "launches": 1, "minutes": 4.0, "lost": "It does not answer.", "runs": ""}]}),
]  # fmt: skip
ENTRIES = [
    Entry(seq=seq, at_utc="2026-01-01T00:00:00Z", epoch=1, kind=kind, key=key, body={**body, **({"box": box} if box else {})}, prev="", hash="")
    for seq, (kind, box, key, body) in enumerate(ROWS, 1)
]


def said(part: str) -> str:
    return "\n".join(f"{row['entry']}: {row['said']}" for row in search_story(ENTRIES, "s")[part])


def test_what_the_search_started_from_is_told_with_its_entries() -> None:
    text = said("started_from")
    assert "1: launches of an earlier study that ran before this one were pinned: before, 2 settings" in text
    assert "1: known-good settings of ours (file) were pinned: without disable_cuda_graph mem_fraction_static=0.9" in text
    assert "2: the playbook of drafts named what to try" in text
    asked = next(line for line in text.splitlines() if line.startswith("8: "))
    for part in ("(gp)", "1 launch of this study, the baseline among them", "1 of before", "1 that rules refused before a launch", "1 that other boxes were measuring", "came first: mem_fraction_static=0.95"):
        assert part in asked, asked


def test_what_left_a_space_is_told_with_what_did_it() -> None:
    story = search_story(ENTRIES, "s")
    assert [(row["by"], row["params"], row["entry"]) for row in story["left_the_space"]] == [
        ("evidence", ["page_size", "swa"], 7), ("rules", ["kv_cache_dtype"], 7), ("importance", ["page_size"], 9), ("another space", [], 9),
    ]  # fmt: skip
    assert "page_size, swa: ruled out with drafts, late (drafts by a launch, entry 5; late by evidence (queue.depth_p95 = 0), entry 6)" in said("left_the_space")
    assert "page_size (0.2%)" in said("left_the_space") and "functional ANOVA" in said("left_the_space")
    assert "Not searched in it: page_size, swa (ruled out with drafts, late); kv_cache_dtype (Not here)." in sentence(ENTRIES[6])


def test_what_was_stopped_early_is_told_with_what_it_saved() -> None:
    rows = search_story(ENTRIES, "s")["stopped_early"]
    assert [(row["by"], row["entry"], row["saved_s"]) for row in rows] == [("first windows", 4, 65.0), ("start-up facts", 10, 110.0)]
    assert "40 s of its window, and the side load at 1" in rows[0]["said"] and "below 2003" in rows[0]["said"]
    assert "its KV pool is small. It saved at least 110 s of load" in rows[1]["said"]
    assert "Its first windows end it below 2,003 tok/s." in sentence(ENTRIES[2])
    assert "The first windows decided: stopped after 20 s: 938.4 tokens/s, below 2003; its side loads were left out." in sentence(ENTRIES[3])


def test_a_lost_box_is_told_with_its_trial_and_who_took_it_up() -> None:
    text = said("boxes")
    assert "12: b was lost: its trial (other, entry 11) is open again for the others, and a took it up at entry 13. It does not answer." in text
    assert "14: b: Tried again" in text and "15: b still did not answer; the guard there restores" in text
    assert "16: a: 2 launches after its baseline, 9.0 minutes, The best settings serve on a." in text and "lost: It does not answer." in text


def test_the_report_has_the_same_and_says_nothing_where_nothing_happened() -> None:
    lines = search_markdown(ENTRIES)
    assert lines[0] == "## How the search went" and all(f"**{title}**" in lines for title in ("What the search started from", "Parameters that left a space", "Trials that were stopped early", "Boxes"))
    assert search_markdown([]) == []


def test_the_command_tells_it_of_every_recorded_study() -> None:
    for study in RECORDED:
        done = CliRunner().invoke(main, ["journal", str(study), "--search"])
        assert done.exit_code == 0 and "How the search of" in done.output and "Boxes:\n    One box." in done.output, done.output
    refused = CliRunner().invoke(main, ["journal", str(RECORDED[0]), "--search", "--why", "3"])
    assert refused.exit_code == 2 and "--search tells how the whole search went" in refused.output
