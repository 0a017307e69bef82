"""Which parameters of a search space this box's engine build really has, by its own ``--help``. Responsible for names
and choices only; what is left out is returned with the reason, never dropped silently."""

from dataclasses import dataclass

from optimizer.core.resolve import is_json_param, offered, spellings
from optimizer.model.base import Scalar
from optimizer.model.flags import FlagTable
from optimizer.model.space import Param, Refusal, Space


@dataclass(frozen=True)
class Available:
    """``params``: in the space's order, choices narrowed to those of the build. ``missing``: not testable here, and
    why."""

    params: tuple[Param, ...]
    missing: tuple[Refusal, ...]


def available(space: Space, flags: FlagTable, only: tuple[str, ...] = ()) -> Available:
    """The parameters of ``space`` (restricted to ``only``) that can be given to this build."""
    params: list[Param] = []
    missing: list[Refusal] = []
    for param in space.params:
        if only and param.name not in only:
            continue
        spelling = offered(param.name, param, flags)
        if spelling is None:
            tried = ", ".join(spellings(param.name, param))
            missing.append(_missing(param, f"Not testable here: this build's --help has no {tried}."))
            continue
        narrowed = _narrowed(param, spelling, flags)
        if not narrowed.grid and param.grid:
            missing.append(
                _missing(param, f"Not testable here: {spelling} of this build takes none of {list(param.grid)}.")
            )
            continue
        params.append(narrowed)
    missing.extend(
        _missing(Param(name=name, type="choice"), f"The space {space.id} has no parameter {name}.")
        for name in only
        if all(param.name != name for param in space.params)
    )
    return Available(tuple(params), tuple(missing))


def _narrowed(param: Param, spelling: str, flags: FlagTable) -> Param:
    flag = flags.by_name.get(spelling)
    if flag is None or not flag.choices or not param.grid or is_json_param(param.name):
        return param
    grid: tuple[Scalar | list[Scalar], ...] = tuple(value for value in param.grid if str(value) in flag.choices)
    return param if grid == param.grid else param.model_copy(update={"grid": grid})


def _missing(param: Param, why: str) -> Refusal:
    return Refusal(kind="unavailable", params={param.name: None}, why=why, source="--help")
