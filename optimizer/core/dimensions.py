"""Which dimensions of a space are still worth searching: a parameter that only ruled-out hypotheses would change has left it.
Evidence prunes, never ignorance: a parameter that no hypothesis speaks of stays."""

from collections.abc import Mapping, Sequence

from optimizer.model.playbook import HandOver, Playbook, SetAction, SpaceAction

# Odds of 1:20 against, by evidence that was seen. Weaker doubt is what a search is for.
RULED_OUT_PROBABILITY = 0.05


def touched_by(book: Playbook, engine: str, spaces: Mapping[str, Sequence[str]]) -> set[str]:
    """The parameters that curing this cause would change on this engine. ``spaces``: space -> its parameters."""
    names: set[str] = set()
    for action in book.actions:
        if isinstance(action, HandOver) or action.engine not in ("any", engine):
            continue
        if isinstance(action, SetAction):
            names |= set(action.params)
        elif isinstance(action, SpaceAction):
            names |= set(action.only or spaces.get(action.space, ()))
    return names


def pruned(
    names: Sequence[str], books: Sequence[Playbook], probability: Mapping[str, float], opposed: Mapping[str, bool],
    engine: str, spaces: Mapping[str, Sequence[str]],
) -> dict[str, str]:  # fmt: skip
    """name -> why it left the space. ``opposed``: evidence spoke against the hypothesis (a low prior alone prunes nothing)."""
    found: dict[str, str] = {}
    touching = {book.id: touched_by(book, engine, spaces) for book in books}
    for name in names:
        asking = [book.id for book in books if name in touching[book.id]]
        if asking and all(probability.get(item, 1.0) <= RULED_OUT_PROBABILITY and opposed.get(item, False) for item in asking):
            found[name] = f"ruled out with {', '.join(asking)}"
    return found
