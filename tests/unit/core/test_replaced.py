"""Records of a folded state are copied as ``dataclasses.replace`` copies them."""

import dataclasses

import pytest

from optimizer.core.state import State
from optimizer.model.replaced import replace


def test_a_copy_is_that_of_the_standard_library_and_a_wrong_name_is_refused() -> None:
    state = State(seq=3, box="a")
    assert replace(state, seq=4, armed=True) == dataclasses.replace(state, seq=4, armed=True)
    assert state == State(seq=3, box="a")
    with pytest.raises(TypeError, match="State has no field sequence"):
        replace(state, sequence=4)  # type: ignore[call-arg]
