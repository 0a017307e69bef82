"""``dataclasses.replace`` for the plain records of a folded state: folding a journal copies records of up to seventy fields several
times an entry, and the standard one reads, checks and sets every field anew."""

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # the checker knows the fields of the standard one
    from dataclasses import replace as replace
else:
    T = TypeVar("T")

    def replace(record: T, /, **changes: Any) -> T:
        """``record`` with these fields changed. Of a dataclass without slots, ``__post_init__`` and cached properties; raises TypeError
        for a field that it does not have."""
        kind = type(record)
        copied = object.__new__(kind)
        fields = copied.__dict__
        fields.update(record.__dict__)
        fields.update(changes)
        if len(fields) != len(kind.__dataclass_fields__):
            raise TypeError(f"{kind.__name__} has no field {', '.join(sorted(fields.keys() - kind.__dataclass_fields__.keys()))}.")
        return copied
