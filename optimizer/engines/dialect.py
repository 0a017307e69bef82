"""How one engine spells its settings on a command line, as data: canonical parameter names for flags that were
renamed, which values are text, which flags are no settings at all. Responsible for names only; ``argv.py`` reads and
edits with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from optimizer.model.flags import Flag, FlagTable
from optimizer.redact import may_hold_secret


@dataclass(frozen=True)
class Dialect:
    """Naming rules of one engine.

    ``spellings``: parameter -> its flags, newest first, for every parameter whose flag is not simply
    ``--name-with-dashes`` or that has been renamed. ``identity``: parameters that say where and as whom a server
    runs; they are no settings. ``text``: parameters whose values stay text even when they look like numbers.
    ``suffixes``: multipliers of ``16k``-like values, taken
    for the parameters in ``suffixed``. ``underscores``: the parser accepts ``--max_num_seqs`` too, and ``--flag.key
    value``. ``exact``: the parser takes no prefixes, no ``--flag=value``, and always the next token as a value.
    ``negatives``: short spellings that switch their option off.
    """

    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    identity: frozenset[str] = frozenset()
    text: frozenset[str] = frozenset()
    suffixes: Mapping[str, int] = field(default_factory=dict)
    suffixed: frozenset[str] = frozenset()
    underscores: bool = False
    exact: bool = False
    negatives: frozenset[str] = frozenset()

    @cached_property
    def _param_by_spelling(self) -> dict[str, str]:
        return {spelling: param for param, spellings in self.spellings.items() for spelling in spellings}

    def canonical(self, name: str) -> str:
        """The canonical name of a parameter given under any of its names (``cuda_graph_max_bs_decode`` ->
        ``cuda_graph_max_bs``). Environment variables (``env.NAME``) and keys inside JSON settings keep their tail."""
        if name.startswith("env."):
            return name
        base, dot, key = name.partition(".")
        return self._param_by_spelling.get(f"--{base.replace('_', '-')}", base) + dot + key

    def param_spelled(self, spelling: str) -> str | None:
        """The parameter that a spelling of ``spellings`` stands for, short ones (``-np``) included."""
        return self._param_by_spelling.get(spelling)

    def param_of(self, flag: Flag) -> str:
        """The canonical parameter that a flag of a help text stands for."""
        for spelling in (flag.name, *flag.aliases):
            if spelling in self._param_by_spelling:
                return self._param_by_spelling[spelling]
        return flag.name.lstrip("-").replace("-", "_")

    def spellings_of(self, param: str) -> tuple[str, ...]:
        """Every flag of a parameter, newest first. For ``config.key`` the flag of ``config``."""
        base = self.canonical(param).partition(".")[0]
        return self.spellings.get(base) or (f"--{base.replace('_', '-')}",)

    def offered(self, param: str, flags: FlagTable) -> str | None:
        """The spelling to use on this build: the newest that its help lists, one without a deprecation note first."""
        spellings = self.spellings_of(param)
        if not flags.known:
            return spellings[0]
        listed = [spelling for spelling in spellings if spelling in flags.by_name]
        fresh = [spelling for spelling in listed if not flags.by_name[spelling].deprecated]
        return next(iter((*fresh, *listed)), None)

    def is_identity(self, param: str) -> bool:
        """No setting: where and as whom the server runs, or a secret, which never becomes a setting."""
        return param in self.identity or may_hold_secret(param)
