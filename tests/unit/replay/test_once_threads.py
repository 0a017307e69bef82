"""Two studies of one process, decided in two threads, never see each other's remembered results."""

import sys
import threading

from optimizer.core.once import once_measured
from optimizer.core.state import State


def test_what_is_remembered_belongs_to_its_state() -> None:
    states = [State(survey={"number": number}) for number in range(4)]
    wrong: list[object] = []

    def ask(state: State) -> None:
        assert state.survey is not None
        for _ in range(3000):
            if (found := once_measured(state, "number", lambda: state.survey)) is not state.survey:
                wrong.append(found)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=(state,)) for state in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
