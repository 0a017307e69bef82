"""Reads AMD's tools as JSON: ``rocm-smi ... --json`` (cards by name, every value a text with its unit in the key) and
``amd-smi static|metric --json`` (a list of GPUs, values as ``{"value", "unit"}``; wrapped in ``gpu_data`` from ROCm 7 on).
States the same facts as the NVIDIA parsers. Serial numbers and unique ids are never looked at."""

import re
from collections.abc import Mapping
from typing import Any

from optimizer.evidence.found import Found, quantile
from optimizer.evidence.literal import strict_json
from optimizer.evidence.positions import Positions

_LINK = "(Topology) Link type between DRM devices "
_BYTES = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "mib": 2**20, "gib": 2**30}
_LANE_GB_S = {2.5: 0.25, 5.0: 0.5, 8.0: 0.985, 16.0: 1.969, 32.0: 3.938, 64.0: 7.563}  # GT/s -> GB/s and direction
_CLOCK = re.compile(r"\(?(\d{1,6}(?:\.\d{1,3})?)\s*M[Hh]z\)?")
_RANGE = re.compile(r"(\d{1,6})\s*M[Hh]z\s*-\s*(\d{1,6})\s*M[Hh]z")
_PCIE = re.compile(r"(\d{1,2}(?:\.\d)?)\s*GT/s\s*,?\s*x(\d{1,2})")
BUSY_PCT = 5.0

# What to ask on a box with these tools. Read-only, one second each.
ROCM_SMI = (
    "rocm-smi", "--showproductname", "--showdriverversion", "--showuse", "--showmemuse", "--showmeminfo", "vram", "--showpower",
    "--showmaxpower", "--showclocks", "--showclkfrq", "--showtemp", "--showbus", "--showtopo", "--showperflevel",
    "--showreplaycount", "--json",
)  # fmt: skip
AMD_SMI_STATIC = ("amd-smi", "static", "--json")
AMD_SMI_METRIC = ("amd-smi", "metric", "--json")


def rocm_facts(found: Found, data: bytes, gpus: int | None = None) -> None:
    """Facts of ``rocm-smi --json``. Raises ValueError when it is no JSON object. Keys of old and new releases are read."""
    start = data.find(b"{")  # the tool prints warnings before its answer
    raw = strict_json(data[start:] if start > 0 else data)
    if not isinstance(raw, dict):
        raise ValueError("it must be a JSON object")
    at = Positions(data).at
    cards = [raw[name] for name in sorted(raw, key=_card_number) if name.startswith("card") and isinstance(raw[name], dict)]
    if not cards:
        found.missing("gpu.count", "rocm-smi lists no card")
        return

    def first(card: Mapping[str, Any], *keys: str) -> str | None:
        low = {str(key).lower(): value for key, value in card.items()}
        for key in keys:
            value = low.get(key.lower())
            if isinstance(value, str | int | float) and str(value).strip() not in ("", "N/A"):
                return str(value)
        return None

    def numbers(*keys: str) -> list[float]:
        return [value for card in cards if (value := _number(first(card, *keys))) is not None]

    name = first(cards[0], "Card Series", "Device Name", "Card Model")
    found.add("gpu.name", name[:120] if name else None, at("Card Series") or at("Card series") or at("Device Name"))
    found.add("gpu.count", len(cards), at("card0"))
    arch = first(cards[0], "GFX Version")
    found.add("gpu.arch", arch if arch and arch.startswith("gfx") else None, at("GFX Version"))
    system = raw.get("system")
    found.add("gpu.driver", first(system, "Driver version") if isinstance(system, dict) else None, at("Driver version"))
    total, used = numbers("VRAM Total Memory (B)"), numbers("VRAM Total Used Memory (B)")
    _memory(found, total, used, at("VRAM Total Memory (B)"), at("VRAM Total Used Memory (B)"))
    use = numbers("GPU use (%)")
    found.add("gpu.sm_util_p50", quantile(use, 0.5), at("GPU use (%)"))
    found.add("gpu.mem_util_p50", quantile(numbers("GPU Memory Read/Write Activity (%)"), 0.5), at("GPU Memory Read/Write Activity (%)"))
    power = numbers("Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)")
    limits = numbers("Max Graphics Package Power (W)")
    _power(found, power, limits, None, at("Max Graphics Package Power (W)"))
    heat = numbers("Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)")
    found.add("gpu.temperature_c_max", max(heat, default=None), at("Temperature (Sensor junction) (C)") or at("Temperature (Sensor edge) (C)"))
    replays = numbers("PCIe Replay Count")
    if replays:
        found.add("gpu.error_count", int(sum(replays)), at("PCIe Replay Count"), labels={"kind": "pcie_replay"}, bound="at_most")
    if max(use, default=0.0) < BUSY_PCT:
        _idle(found)
    else:
        for key, ranges, fact in (
            ("sclk clock speed:", "Valid sclk range", "gpu.sm_clock_share"),
            ("mclk clock speed:", "Valid mclk range", "gpu.mem_clock_share"),
        ):
            shares = []
            for card in cards:
                now, best = _CLOCK.search(first(card, key) or ""), _RANGE.search(first(card, ranges) or "")
                if now and best and float(best[2]) > 0:
                    shares.append(min(1.0, float(now[1]) / float(best[2])))
            found.add(fact, min(shares, default=None), at(key), basis="derived")
        rates = [_rate(float(m[1]), int(m[2])) for card in cards if (m := _PCIE.search(first(card, "pcie clock level") or ""))]
        found.add("pcie.link_gb_s", min((rate for rate in rates if rate is not None), default=None), at("pcie clock level"), basis="derived")
    _topology(found, system if isinstance(system, dict) else {}, gpus or len(cards), at)


def _topology(found: Found, system: Mapping[str, Any], gpus: int, at: Any) -> None:
    """XGMI or PCIe between the first ``gpus`` cards; ``nvlink`` is the vocabulary's word for a link of its own."""
    kinds: dict[str, str] = {}
    nodes = set()
    for key, value in system.items():
        if key.lower().startswith(_LINK.lower()):
            pair = re.findall(r"\d{1,3}", key[len(_LINK) :])
            if len(pair) == 2 and int(pair[0]) < gpus and int(pair[1]) < gpus and pair[0] != pair[1]:
                kinds[key] = str(value).upper()
        elif "numa node" in key.lower() and str(value).lstrip("-").isdigit() and int(value) >= 0:
            nodes.add(int(value))
    if gpus == 1:
        found.add("topology.gpu_link", "single", at("card0"))
    elif kinds:
        slow = next((key for key, kind in kinds.items() if kind != "XGMI"), None)
        found.add("topology.gpu_link", "nvlink" if slow is None else "pcie", at(slow or next(iter(kinds))))
    else:
        found.missing("topology.gpu_link", "rocm-smi --showtopo told of no link between two cards")
    if nodes:
        found.add("host.numa_nodes", len(nodes))


def amd_static_facts(found: Found, data: bytes) -> None:
    """Facts of ``amd-smi static --json``: name, memory, driver, power limit, modes. Raises ValueError for anything else."""
    rows, at = _rows(data), Positions(data).at
    found.add("gpu.count", len(rows), at("gpu"))
    asic = _section(rows[0], "asic")
    name = asic.get("market_name")
    found.add("gpu.name", name[:120] if isinstance(name, str) and name != "N/A" else None, at("market_name"))
    arch = asic.get("target_graphics_version")
    found.add("gpu.arch", arch if isinstance(arch, str) and arch.startswith("gfx") else None, at("target_graphics_version"))
    driver = _section(rows[0], "driver")
    version = driver.get("version") or driver.get("driver_version")
    found.add("gpu.driver", version[:80] if isinstance(version, str) and version != "N/A" else None, at("driver"))
    sizes = [size for row in rows if (size := _bytes(_section(row, "vram").get("size") or _section(row, "vram").get("vram_size"))) is not None]
    found.add("gpu.memory_total_gib", min(sizes) / 2**30 if sizes else None, at("vram"))
    limits, ceilings = [], []
    for row in rows:
        limit = _section(row, "limit")
        limit = _section(limit, "ppt0") or limit
        limits.append(_measure(limit.get("socket_power_limit") if "socket_power_limit" in limit else limit.get("socket_power")))
        ceilings.append(_measure(limit.get("max_power_limit") if "max_power_limit" in limit else limit.get("max_power")))
    pairs = [(now, top) for now, top in zip(limits, ceilings, strict=True) if now and top]
    if pairs:
        now, top = min(pairs, key=lambda pair: pair[0] / pair[1])
        found.add("gpu.power_limit_w", now, at("limit"))
        found.add("gpu.power_limit_share", min(1.0, now / top), at("limit"), basis="derived")
    mode = _section(rows[0], "partition").get("compute_partition") or _section(rows[0], "partition").get("accelerator_partition")
    if isinstance(mode, str) and mode != "N/A":
        found.add("gpu.mig", mode.upper() != "SPX", at("partition"))


def amd_metric_facts(found: Found, data: bytes) -> None:
    """Facts of ``amd-smi metric --json``: use, memory, power, clocks, link, throttling, errors. Raises ValueError for
    anything else."""
    rows, at = _rows(data), Positions(data).at
    use = [value for row in rows if (value := _measure(_section(row, "usage").get("gfx_activity"))) is not None]
    found.add("gpu.sm_util_p50", quantile(use, 0.5), at("gfx_activity"))
    memory = [value for row in rows if (value := _measure(_section(row, "usage").get("umc_activity"))) is not None]
    found.add("gpu.mem_util_p50", quantile(memory, 0.5), at("umc_activity"))
    spaces = [_section(row, "mem_usage") for row in rows]
    total = [value for space in spaces if (value := _bytes(space.get("total_vram"))) is not None]
    used = [value for space in spaces if (value := _bytes(space.get("used_vram"))) is not None]
    _memory(found, total, used, at("total_vram"), at("used_vram"))
    power = [value for row in rows if (value := _measure(_section(row, "power").get("socket_power"))) is not None]
    _power(found, power, [], at("socket_power"), None)
    heat = [value for row in rows for key in ("hotspot", "edge") if (value := _measure(_section(row, "temperature").get(key))) is not None]
    found.add("gpu.temperature_c_max", max(heat, default=None), at("temperature"))
    ecc = [value for row in rows if (value := _measure(_section(row, "ecc").get("total_uncorrectable_count"))) is not None]
    if ecc:
        found.add("gpu.error_count", int(sum(ecc)), at("total_uncorrectable_count"), labels={"kind": "ecc"}, bound="at_most")
    replays = [value for row in rows if (value := _measure(_section(row, "pcie").get("replay_count"))) is not None]
    if replays:
        found.add("gpu.error_count", int(sum(replays)), at("replay_count"), labels={"kind": "pcie_replay"}, bound="at_most")
    if max(use, default=0.0) < BUSY_PCT:
        _idle(found)
        return
    states = [str(_section(row, "power").get("throttle_status") or "") for row in rows]
    if any(state in ("THROTTLED", "UNTHROTTLED") for state in states):
        # The tool says that, not why; power is by far the most frequent reason and the vocabulary's first.
        found.add("gpu.throttle_share", float("THROTTLED" in states), at("throttle_status"), labels={"reason": "sw_power_cap"})
    for prefix, fact in (("gfx_0", "gpu.sm_clock_share"), ("mem_0", "gpu.mem_clock_share")):
        shares = []
        for row in rows:
            clock = _section(_section(row, "clock"), prefix)
            now, best = _measure(clock.get("clk")), _measure(clock.get("max_clk"))
            if now is not None and best:
                shares.append(min(1.0, now / best))
        found.add(fact, min(shares, default=None), at(prefix), basis="derived")
    rates = []
    for row in rows:
        link = _section(row, "pcie")
        speed, width = _measure(link.get("speed")), _measure(link.get("width"))
        rate = _rate(speed, int(width)) if speed is not None and width is not None else None
        if rate is not None:
            rates.append(rate)
    found.add("pcie.link_gb_s", min(rates, default=None), at("pcie"), basis="derived")


def _idle(found: Found) -> None:
    for name in ("gpu.sm_clock_share", "gpu.mem_clock_share", "gpu.throttle_share", "pcie.link_gb_s", "pcie.link_share"):
        found.missing(name, "the GPUs were idle when they were asked, and an idle GPU lowers its link and clocks by design")


def _memory(found: Found, total: list[float], used: list[float], total_at: Any, used_at: Any) -> None:
    if total:
        found.add("gpu.memory_total_gib", min(total) / 2**30, total_at)
    if used:
        found.add("gpu.memory_used_gib", max(used) / 2**30, used_at)
    if total and len(total) == len(used):
        found.add("gpu.memory_free_gib", max(0.0, min(a - b for a, b in zip(total, used, strict=True))) / 2**30, used_at)


def _power(found: Found, power: list[float], limits: list[float], power_at: Any, limit_at: Any) -> None:
    middle = quantile(power, 0.5)
    found.add("gpu.power_w_p50", middle, power_at or limit_at)
    if limits:
        found.add("gpu.power_limit_w", min(limits), limit_at)
        if middle is not None and min(limits) > 0:
            found.add("gpu.power_share", min(1.0, middle / min(limits)), limit_at, basis="derived")


def _rows(data: bytes) -> list[Mapping[str, Any]]:
    start = min((place for place in (data.find(b"{"), data.find(b"[")) if place >= 0), default=0)
    raw: Any = strict_json(data[start:])
    if isinstance(raw, dict):
        raw = raw.get("gpu_data", [raw] if "gpu" in raw else raw.get("data"))
    rows: list[Mapping[str, Any]] = [row for row in raw if isinstance(row, dict)] if isinstance(raw, list) else []
    if not rows:
        raise ValueError("it lists no GPU")
    return rows


def _section(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, Mapping) else {}


def _measure(value: Any) -> float | None:
    """The number of ``{"value": 12, "unit": "W"}``, of ``"12 W"`` or of ``12``."""
    if isinstance(value, Mapping):
        value = value.get("value")
    return _number(value)


def _bytes(value: Any) -> float | None:
    number = _measure(value)
    unit = str(value.get("unit") or "MB") if isinstance(value, Mapping) else "MB"
    return None if number is None else number * _BYTES.get(unit.lower(), 2**20)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if 0 <= value < 1e18 else None
    match = re.match(r"\s*(\d{1,18}(?:\.\d{1,9})?)", str(value)[:60])
    return float(match[1]) if match else None


def _rate(speed: float, width: int) -> float | None:
    lane = _LANE_GB_S.get(speed)
    return lane * width if lane is not None and 0 < width <= 64 else None


def _card_number(name: str) -> tuple[int, str]:
    digits = name.removeprefix("card")
    return (int(digits), "") if digits.isdigit() and len(digits) < 6 else (10**6, name)
