"""What a build's ``--help`` offers. The table, not a version range, decides whether a parameter exists on a box."""

from functools import cached_property

from optimizer.model.base import Frozen


class Flag(Frozen):
    """One option as printed by argparse."""

    name: str  # the long spelling, e.g. --cuda-graph-max-bs
    aliases: tuple[str, ...] = ()
    takes_value: bool = True
    many: bool = False  # nargs: several values, space separated
    choices: tuple[str, ...] = ()
    default: str | None = None
    deprecated: bool = False
    negatable: bool = False  # vLLM style --foo / --no-foo


class FlagTable(Frozen):
    """Every option of one engine build; ``known`` is false when the help text could not be read: then nothing is filtered
    but ``absent``, the spellings that a build of this version is known not to have."""

    flags: tuple[Flag, ...] = ()
    known: bool = True
    digest: str = ""
    absent: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        return {spelling: flag for flag in self.flags for spelling in (flag.name, *flag.aliases)}

    def offers(self, spelling: str) -> bool:
        return spelling in self.by_name if self.known else spelling not in self.absent
