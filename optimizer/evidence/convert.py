"""Brings a value that somebody else measured into the vocabulary's unit. Only units of one dimension are converted; what
cannot be is refused with the reason. Knows units, not facts."""

from optimizer.model.base import Value

# unit -> (dimension, factor to the dimension's base)
_UNITS: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), ("time", 1.0)),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), ("time", 1e-3)),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), ("time", 1e-6)),
    **dict.fromkeys(("ns", "nanoseconds"), ("time", 1e-9)),
    **dict.fromkeys(("min", "minute", "minutes"), ("time", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("time", 3600.0)),
    **dict.fromkeys(("bytes", "byte", "b"), ("bytes", 1.0)),
    "kib": ("bytes", 2.0**10), "mib": ("bytes", 2.0**20), "gib": ("bytes", 2.0**30), "tib": ("bytes", 2.0**40),
    "kb": ("bytes", 1e3), "mb": ("bytes", 1e6), "gb": ("bytes", 1e9), "tb": ("bytes", 1e12),
    "gb/s": ("byte rate", 1e9), "mb/s": ("byte rate", 1e6), "kb/s": ("byte rate", 1e3), "gib/s": ("byte rate", 2.0**30),
    "mib/s": ("byte rate", 2.0**20), "tb/s": ("byte rate", 1e12), "gbit/s": ("byte rate", 1.25e8),
    **dict.fromkeys(("tokens/s", "token/s", "tok/s", "tps", "tokens per second"), ("token rate", 1.0)),
    **dict.fromkeys(("tokens/min", "tok/min"), ("token rate", 1 / 60)),
    **dict.fromkeys(("requests/s", "request/s", "req/s", "rps", "qps"), ("request rate", 1.0)),
    **dict.fromkeys(("requests/min", "req/min", "rpm"), ("request rate", 1 / 60)),
    **dict.fromkeys(("ratio", "share", "fraction"), ("ratio", 1.0)),
    **dict.fromkeys(("percent", "%", "pct"), ("ratio", 0.01)),
    "billion": ("count", 1e9), "million": ("count", 1e6), "thousand": ("count", 1e3), "count": ("count", 1.0),
    "w": ("power", 1.0), "kw": ("power", 1e3), "mw": ("power", 1e-3),
    "c": ("temperature", 1.0), "celsius": ("temperature", 1.0), "°c": ("temperature", 1.0),
}  # fmt: skip
_NOTHING = ("", "none", "null", "-", "1")
# Words for counted things: a count of one is a count of the other only when the word is the same.
_PLURALS = ("tokens", "requests", "steps", "processes", "ranks", "gpus", "experts", "layers", "nodes", "cores", "servers", "devices", "images", "launches", "channels")


def same_unit(given: str, wanted: str) -> bool:
    """Whether both words name one unit (``tok/s`` and ``tokens/s``, ``none`` and nothing)."""
    left, right = given.strip().lower(), wanted.strip().lower()
    if left == right or (left in _NOTHING and right in _NOTHING):
        return True
    if f"{left}s" == right or (right in _PLURALS and left == "count"):
        return True
    return left in _UNITS and _UNITS[left] == _UNITS.get(right)


def factor(given: str, wanted: str) -> float | None:
    """What to multiply a value in ``given`` with to have it in ``wanted``; None when they measure different things."""
    if same_unit(given, wanted):
        return 1.0
    left, right = _UNITS.get(given.strip().lower()), _UNITS.get(wanted.strip().lower())
    return left[1] / right[1] if left is not None and right is not None and left[0] == right[0] else None


def scaled(value: Value, by: float) -> Value:
    """The value, or every number of a list, times ``by``; six significant digits. Raises ValueError for what is no number."""
    if isinstance(value, list):
        return [scaled(item, by) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    product = float(f"{value * by:.6g}")
    return int(product) if isinstance(value, int) and product.is_integer() and by >= 1 else product
