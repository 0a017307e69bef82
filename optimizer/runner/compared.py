"""What forbids the answer "healthy" although no known cause stands out: a baseline that is faster, or a setting that was asked for and
costs speed whatever else is true. Pure text over facts; it ranks nothing."""

from collections.abc import Mapping

from optimizer.core.roofline import load_points
from optimizer.evidence.bundle import Bundle
from optimizer.model.base import Value
from optimizer.model.evidence import Evidence
from optimizer.model.measurement import LoadPoint
from optimizer.runner.next_step import launch_cost
from optimizer.runner.sheet import asked, changed

# Two launches of one setting differ by up to a tenth in short benchmarks of GPUs, by a quarter on the recorded CPUs.
SLOWER, SLOWER_ON_CPU = 0.8, 0.7
# A step reads all weights for as many tokens as the chunk holds: below this every GPU of the table waits for its memory.
SMALL_CHUNK = 256
_CHUNK_SETTINGS = ("chunked_prefill_size", "max_num_batched_tokens", "ubatch_size")
SHOWN = 4


def rates(bundle: Bundle) -> dict[int, float]:
    """Output tokens/s by concurrency, random prompts alone."""
    points: tuple[LoadPoint, ...] = load_points(bundle.bench)
    return {point.concurrency: point.metrics["output_tokens_per_s"] for point in points}


def slower(bundle: Bundle, baseline: Bundle | None) -> str | None:
    """What to do where the baseline's launch is clearly faster at a load that both measured; None where it is not."""
    if baseline is None:
        return None
    now, before = rates(bundle), rates(baseline)
    ratios = {level: now[level] / before[level] for level in now if level in before}
    if not ratios:
        return None
    level = min(ratios, key=lambda one: ratios[one])
    if ratios[level] >= (SLOWER_ON_CPU if bundle.evidence.value("engine.device") == "cpu" else SLOWER):
        return None
    said = f"Slower than the baseline: {now[level]:.4g} against {before[level]:.4g} tok/s at concurrency {level} (×{ratios[level]:.2f}, one launch each)."
    other = changed(asked(baseline), asked(bundle))
    if not other:
        return f"{said} Nothing was asked differently: measure both again, on the same box and build, and compare what the starts say. Cost: two benchmarks."
    listed = "; ".join(f"{_spelled(name)} {_value(was)} -> {_value(is_)}" for name, (was, is_) in list(other.items())[:SHOWN])
    more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
    how = "it as there" if len(other) == 1 else "one of them at a time as there"
    return f"{said} Asked differently: {listed}{more}. Relaunch with {how}, and compare. Cost: {launch_cost(bundle.evidence)}."


def asked_for(evidence: Evidence) -> str | None:
    """A setting that was given and is slow by construction, and what to do; None where there is none."""
    given = evidence.value("settings.asked")
    if not isinstance(given, Mapping):
        return None
    for why, name in (_small_chunk(given, evidence), _wide_weights(given, evidence)):
        if why:
            return f"{why} Relaunch without {_spelled(name)} and compare under the same load. Cost: {launch_cost(evidence)}."
    return None


def _small_chunk(given: Mapping[str, Value], evidence: Evidence) -> tuple[str, str]:
    chunk, prompt = evidence.number("prefill.chunk_tokens"), evidence.number("client.input_tokens")
    name = next((one for one in _CHUNK_SETTINGS if given.get(one) == chunk), "")
    if not name or chunk is None or prompt is None or not 0 < chunk < SMALL_CHUNK or prompt < 2 * chunk:
        return "", ""
    return f"{_spelled(name)} {chunk:.0f} cuts a prompt of {prompt:.0f} tokens into {-(-prompt // chunk):.0f} steps, each of which reads all weights.", name


def _wide_weights(given: Mapping[str, Value], evidence: Evidence) -> tuple[str, str]:
    if given.get("dtype") not in ("float32", "float"):
        return "", ""
    return f"--dtype {given['dtype']} reads four bytes for every weight, where most models are stored in two.", "dtype"


def _spelled(name: str) -> str:
    return name[4:] if name.startswith("env.") else f"--{name.replace('_', '-')}"


def _value(value: Value) -> str:
    return "(not given)" if value is None else str(value)[:60]
