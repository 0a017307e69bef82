"""Settings: what a launch is asked to use. Parameter -> value, where a parameter is a flag in snake case
(``cuda_graph_max_bs``) or an environment variable behind ``env.`` (``env.NCCL_PROTO``). ``None`` means "not given"."""

from collections.abc import Mapping
from functools import cached_property
from typing import Self

from pydantic import Field

from optimizer.model.base import Frozen, Value
from optimizer.model.canonical import digest


class Settings(Frozen):
    """Canonical overlay over the original command line. Empty means: exactly as the user started it."""

    values: dict[str, Value] = Field(default_factory=dict)

    def merged(self, changes: Mapping[str, Value]) -> "Settings":
        return Settings(values=dict(sorted({**self.values, **changes}.items())))

    def changed_from(self, other: "Settings") -> dict[str, tuple[Value, Value]]:
        """param -> (value in ``other``, value here) for every parameter that differs."""
        keys = sorted(set(self.values) | set(other.values))
        pairs = {key: (other.values.get(key), self.values.get(key)) for key in keys}
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1] or type(pair[0]) is not type(pair[1])}

    def __copy__(self) -> Self:
        """A copy may get other values at once, so the digest of the old ones is dropped."""
        copied = super().__copy__()
        copied.__dict__.pop("digest", None)
        return copied

    @cached_property
    def digest(self) -> str:
        return digest(dict(sorted(self.values.items())))

    def __hash__(self) -> int:
        return hash(self.digest)
