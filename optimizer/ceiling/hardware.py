"""Finds the data-sheet entry of a GPU by the name that the driver prints. No entry means no ceiling."""

import re
from collections.abc import Sequence

from optimizer.model.ceiling import HardwareSpec, NoCeiling


def find_hardware(
    specs: Sequence[HardwareSpec], gpu_name: str | None, memory_mib: float | None = None
) -> HardwareSpec | NoCeiling:
    """The entry whose ``match`` occurs in ``gpu_name``: the longest match, the nearest memory size among equals."""
    if not gpu_name:
        return NoCeiling(reason="no GPU was found, so there is no data sheet to compute a ceiling from")
    name = gpu_name.lower()
    found = [(length, spec) for spec in specs if (length := _match_length(spec, name))]
    if not found:
        return NoCeiling(reason=f"playbooks/hardware.yaml has no entry for {gpu_name!r}")
    longest = max(length for length, _ in found)
    best = [spec for length, spec in found if length == longest]
    if memory_mib is None:
        return best[0]
    return min(best, key=lambda spec: abs(spec.memory_mib - memory_mib))


def matrix_rate(hardware: HardwareSpec, compute: str) -> float:
    """Dense matrix operations/s at ``compute``; where the GPU lacks the format natively, the next wider one it has."""
    wider = {"fp4": ("fp4", "fp8", "bf16"), "fp8": ("fp8", "bf16"), "int8": ("int8", "bf16")}
    for dtype in wider.get(compute, ("bf16",)):
        if dtype in hardware.flops:
            return hardware.flops[dtype]
    return max(hardware.flops.values())


def link_rate(hardware: HardwareSpec) -> float | None:
    """The fastest link of this GPU to its peers, bytes/s per direction."""
    return max(hardware.link.values(), default=None)


def _match_length(spec: HardwareSpec, name: str) -> int:
    """Length of the longest matching text, as whole words: "l4" must not be found in "l40s"."""
    return max((len(text) for text in spec.match if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", name)), default=0)
