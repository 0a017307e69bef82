"""The fast box as a fixture; the other whole-product tests import it from here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .fastbox import FastBox


@pytest.fixture
def box(tmp_path: Path) -> Iterator[FastBox]:
    made = FastBox(tmp_path)
    yield made
    made.close()
