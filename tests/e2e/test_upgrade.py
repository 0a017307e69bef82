"""Upgrade forensics end to end: one command line, studied on a release and on the next one, whose default covers fewer batches with graphs. What is
compared is what the two servers said and did; nobody told the tool what had changed."""

from __future__ import annotations

import json
import shutil

import pytest

from optimizer.engines.simulator import box as simulator

from .fastbox import LAUNCH_SERVER, FastBox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NEXT = "0.5.13"


def upgrade(box: FastBox) -> None:
    """The next release is installed over this one: another version, and graphs of four sequences where nothing else is asked."""
    code = box.folder / "next"
    shutil.copytree(simulator.ROOT / "simbox", code / "simbox", ignore=shutil.ignore_patterns("__pycache__"))
    physics = code / "simbox/physics.py"
    text = physics.read_text()
    head = "def default_graph_max(memory_mib: int, tp: int) -> int:\n"
    assert head in text
    physics.write_text(text.replace(head, f"{head}    return 4\n"))
    site = box.home / "site"
    (site / "sglang/launch_server.py").write_text(LAUNCH_SERVER.format(root=str(code)))
    (site / "sglang/__init__.py").write_text(f'__version__ = "{NEXT}"\n')
    shutil.rmtree(site / f"sglang-{simulator.VERSION}.dist-info")
    (site / f"sglang-{NEXT}.dist-info").mkdir()
    (site / f"sglang-{NEXT}.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {NEXT}\n")


def test_the_default_that_cost_the_speed_is_named_with_the_flag_that_restores_it(box: FastBox) -> None:
    argv = [word for word in box.argv if word != "--disable-cuda-graph"]
    (box.here / "launch.json").write_text(json.dumps({"argv": argv, "cwd": str(box.home)}))
    assert box(*box.study("before", target="1tps@8")).json["ending"] == "met"
    upgrade(box)
    done = box(*box.study("after", target="1tps@8"))
    assert done.json.get("ending") == "met", done.err
    found = box("diff", "before", "after", "--json").json
    assert (found["before"]["engine_version"], found["after"]["engine_version"]) == (simulator.VERSION, NEXT)
    assert found["comparable"] == [] and found["asked"] == [] and not found["same_build"]
    assert found["speed"]["verdict"] == "slower" and found["speed"]["interval"][1] < 1
    resolved = {row["setting"]: (row["before"], row["after"]) for row in found["resolved"]}
    assert resolved["cuda_graph_max_bs"] == (256, 4), resolved
    flips = {flip["fact"]: (flip["before"], flip["after"], flip["towards_fallback"]) for flip in found["flips"]}
    assert flips["graphs.capture_max"] == (256, 4, True)
    grown = found["buckets"]["rows"][0]
    assert grown["bucket"] == "eager" and grown["after_ms"] > grown["before_ms"] + 1
    said = box("diff", "before", "after").out
    first = said.split("Put back first")[1].splitlines()[1]
    assert "cuda_graph_max_bs to 256, --cuda-graph-max-bs 256 (now 4, a changed default)" in first, said
    assert "Slower: ×" in said and "Where the time of a token went" in said and "No setting" not in said
    # The flag does restore it: served with it, the new release is far from what it did without (294 against 107 tok/s on a quiet machine).
    lost = next(row["output_tokens_per_s"][1] for row in found["levels"])
    box.argv = (*argv, "--cuda-graph-max-bs", "256")
    box.serve()
    measured = box("bench", f"http://127.0.0.1:{box.port}", "--workload", "w.json", "--json").json
    assert measured["points"][0]["metrics"]["output_tokens_per_s"] > 1.4 * lost
