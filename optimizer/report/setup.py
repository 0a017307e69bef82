"""What a study was of: the box, its GPUs, the engine and the model, and whether the box was a real one. Figures are read by people who
were not there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optimizer.core.confidence import next_launch
from optimizer.core.state import State
from optimizer.model.entry import Entry
from optimizer.report.prose import number

CONFIDENCE = ("Intervals are 95 % over launches where nothing else is said; 98.75 % stands at a verdict that may be looked at up to four times (99 % at five), "
              "so that all its looks together are wrong in 5 % of tests.")  # fmt: skip
AT_THE_END = "by all launches of the study; a verdict says what was known of it when it was given"
FEW = "A rate counts every token of the window; a percentile rests on the requests that it saw whole, and is not given where they are too few."


def confidence_text(state: State) -> str:
    """What the result says of the next launch; empty where nothing can be said."""
    found = next_launch(state)
    if found is None:
        return ""
    share = found["probability"]
    said = "more than 99 %" if share > 0.99 else "less than 1 %" if share < 0.01 else f"{100 * share:.0f} %"
    of = f"{found['launches']} launch{'es' * (found['launches'] != 1)}"
    return f"{said} that one more launch of these settings has {found['bound']}, by {of} and a noise of {100 * found['noise']:.1f} % between launches"


def simulated_text(state: State) -> str:
    """One sentence about a simulated box; empty for a real one."""
    if state.spec is None or state.spec.host.kind != "sim":
        return ""
    return (f"Simulated: {state.spec.host.name} is a local process that takes flags as the engine does and computes how long a step would take; "
            "no figure here was measured on a GPU.")  # fmt: skip


def setup(entries: Sequence[Entry], state: State) -> list[tuple[str, str]]:
    """(what, value) in reading order; what the survey did not see is left out."""
    box, spec = state.survey or {}, state.spec
    gpu = f"{box.get('gpu_count') or 1} × {box['gpu']}" if box.get("gpu") else ""
    where = ", ".join(item.name for item in spec.boxes) if spec is not None and spec.boxes else spec.host.name if spec is not None else ""
    rows = [
        ("box", f"{where}{' (simulated)' if simulated_text(state) else ''}"),
        ("GPU", gpu),
        ("engine", f"{box.get('engine') or ''} {box.get('engine_version') or ''}".strip()),
        ("model", _model(box)),
        ("opened", entries[0].at_utc if entries else ""),
    ]
    return [(what, value) for what, value in rows if value]


def both_levels(was: Mapping[str, Any], level: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Before and after at one load: tokens per second, both latencies, and the requests behind them. ``was``: empty where it was not measured."""
    def pair(name: str, absent: str) -> tuple[str, str]:
        told = [number(side[name]) if side.get(name) is not None else absent if side else "not measured" for side in (was, level)]
        if name == "output_tokens_per_s":
            told = [f"{text} (not valid)" if side.get("invalid") else text for text, side in zip(told, (was, level), strict=True)]
        return told[0], told[1]

    return (pair("output_tokens_per_s", "not measured"), pair("ttft_p50_ms", "too few requests"), pair("tpot_p50_ms", "too few requests"),
            pair("requests_ok", "not known"))  # fmt: skip


def _model(box: Mapping[str, Any]) -> str:
    path, served = str(box.get("model_path") or ""), str(box.get("served_model") or "")
    name = path.rstrip("/").rpartition("/")[2] if path.startswith("/") else path
    return f"{name}, served as {served}" if name and served and served not in (path, name) else name or served
