"""The load testing tools of the field as sources of a measurement, one module for each: how it is started, how its results are
read, and how ours are written in its form. Pure; ``runner/tooling.py`` starts them."""
