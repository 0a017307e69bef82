"""Stands in for SGLang's compiled kernels, which have no build for this kind of machine; see absent.py."""

from absent import stand_in

__version__ = "0.0.0+absent"
stand_in(__name__)
