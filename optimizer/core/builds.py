"""Compares engine versions with the ranges of knowledge files (``>=0.4.6.post5,<=0.5.23``). Responsible for version
order only: pre-releases before, post-releases after; what cannot be read is unknown, which never kills a setting."""

import functools
import re

_VERSION = re.compile(
    r"^v?(?P<release>\d+(?:\.\d+)*)(?P<tail>(?:[._-]?(?:dev|a|alpha|b|beta|rc|post)\.?\d*)*)", re.IGNORECASE
)
_TAIL = re.compile(r"(dev|alpha|a|beta|b|rc|post)\.?(\d*)", re.IGNORECASE)
_ORDER = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1, "post": 1}
_CLAUSE = re.compile(r"^(>=|<=|==|!=|>|<)\s*(\S+)$")

Key = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]


@functools.lru_cache(maxsize=1024)
def version_key(text: str) -> Key | None:
    """A key that sorts versions, None for what is no version. Local parts (``+cu130``) do not count."""
    match = _VERSION.match(text.strip())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    tail = tuple((_ORDER[kind.lower()], int(number or 0)) for kind, number in _TAIL.findall(match["tail"]))
    # The closing (0, 0) puts 0.5.12rc1 and 0.5.12.dev3 before 0.5.12, and 0.5.12.post1 after it.
    return tuple(release), (*tail, (0, 0))


@functools.lru_cache(maxsize=4096)
def replaced(installed: str | None, running: str | None) -> bool:
    """Whether a server runs another release than the one that a launch would start now: somebody has upgraded it in place."""
    releases = [one.split("+")[0] for one in (installed, running) if one is not None and one[:1].isdigit()]
    return len(releases) == 2 and releases[0] != releases[1]


def in_builds(version: str | None, builds: str | None) -> bool | None:
    """Does ``version`` lie in the range? True without a range; None when the version or the range cannot be read."""
    if builds is None or not builds.strip():
        return True
    key = version_key(version) if version else None
    if key is None:
        return None
    for clause in builds.split(","):
        match = _CLAUSE.match(clause.strip())
        bound = version_key(match[2]) if match else None
        if match is None or bound is None:
            return None
        holds = {
            ">=": key >= bound,
            "<=": key <= bound,
            ">": key > bound,
            "<": key < bound,
            "==": key == bound,
            "!=": key != bound,
        }[match[1]]
        if not holds:
            return False
    return True
