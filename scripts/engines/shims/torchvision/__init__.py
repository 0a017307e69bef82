"""Stands in for torchvision, whose wheels do not match a CPU build of torch; see absent.py."""

from absent import stand_in

__version__ = "0.0.0+absent"
stand_in(__name__)
