"""Which observations survive a contamination: a cause is named only on those. Two servers in one log, or somebody else's requests,
make a queue that looks like a limit of this server."""

from collections.abc import Iterable

from optimizer.knowledge.facts import Vocabulary
from optimizer.model.evidence import Evidence, Fact
from optimizer.model.measurement import Invalidity, ValidityCode

# Whose words and numbers these are nobody knows: only what was given at the launch still holds.
WHOSE = (ValidityCode.TWO_SERVERS, ValidityCode.START_FAILED)
GIVEN = ("launch.json", "argv", "env", "host.json", "config.json", "topo.txt", "nvidia-smi-q.txt")
# The pool was sized beside somebody else, and all that follows from its size.
OF_THE_POOL = ("kv.pool_tokens", "kv.max_full_length_requests", "memory.")


def believable(evidence: Evidence, doubts: Iterable[Invalidity], vocabulary: Vocabulary) -> Evidence:
    """``evidence`` without what its contamination reaches."""
    codes = {doubt.code for doubt in doubts}
    return evidence.model_copy(update={"facts": tuple(fact for fact in evidence.facts if _holds(fact, codes, vocabulary))})


def _holds(fact: Fact, codes: set[ValidityCode], vocabulary: Vocabulary) -> bool:
    if codes & set(WHOSE):
        return (fact.source or fact.basis) in GIVEN
    if codes <= {ValidityCode.ERRORS}:  # failed requests falsify what the client measured; why they failed is what is asked
        return not fact.name.startswith(("client.", "roofline.", "waterfall.")) or _before(fact, vocabulary)
    if ValidityCode.KV_POOL_SHRUNK in codes and fact.name.startswith(OF_THE_POOL):
        return False
    return _before(fact, vocabulary)


def _before(fact: Fact, vocabulary: Vocabulary) -> bool:
    spec = vocabulary.by_name.get(fact.name)
    return spec is not None and spec.phase == "before"
