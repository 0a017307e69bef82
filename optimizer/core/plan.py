"""What a decision may use besides the journal: the pinned knowledge. Immutable for a study."""

from dataclasses import dataclass
from functools import cached_property

from optimizer.core.whole_space import space_named
from optimizer.model.ceiling import HardwareSpec
from optimizer.model.learned import Learned
from optimizer.model.playbook import Playbook
from optimizer.model.space import Constraint, DeadSetting, Space


@dataclass(frozen=True)
class Plan:
    """The knowledge of one study. ``digest`` is pinned in the journal's first entry."""

    playbooks: tuple[Playbook, ...] = ()
    spaces: tuple[Space, ...] = ()
    dead: tuple[DeadSetting, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    hardware: tuple[HardwareSpec, ...] = ()
    learned: tuple[Learned, ...] = ()
    digest: str = ""

    @cached_property
    def _by_id(self) -> dict[str, Playbook]:
        return {playbook.id: playbook for playbook in reversed(self.playbooks)}  # the first of a name counts

    def playbook(self, hypothesis: str) -> Playbook | None:
        return self._by_id.get(hypothesis)

    def space(self, space_id: str) -> Space | None:
        return space_named(self.spaces, space_id)
