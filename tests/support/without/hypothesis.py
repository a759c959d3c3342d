"""An import error that tests' front-ends meet instead of hypothesis, which users do not have either.

kio takes hypothesis along if it is there, which is a fifth of a front-end's start.
"""

raise ModuleNotFoundError("front-ends do without hypothesis", name="hypothesis")
