"""Simulated boxes: ``--host sim:NAME``. Everything here prepares a folder that looks like a machine; the programs that run
in it are in ``simbox``."""

from optimizer.engines.simulator.box import SimBox, box_names, prepare_box

__all__ = ["SimBox", "box_names", "prepare_box"]
