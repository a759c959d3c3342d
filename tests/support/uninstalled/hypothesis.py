"""An import error that korvet's processes meet in tests instead of hypothesis, which users do not have either.

kio takes hypothesis along if it is there, which is a fifth of a front-end's start.
"""

raise ModuleNotFoundError("korvet's processes do without hypothesis", name="hypothesis")
