"""``python -m korvet.cli``: the same as ``korvet``."""

from korvet.cli import main

main()
