"""A teller: transfers of its own, both entries in one transaction: `python -m scripts.chaosrun.bank.teller JOB`."""

import itertools
import threading
from typing import Final

from scripts.chaosrun.bank.books import Order
from scripts.chaosrun.bank.producing import Poster, run
from scripts.chaosrun.jobs import Job
from scripts.chaosrun.journal import Journal

AT_ONCE: Final = 4


def work(job: Job, journal: Journal, stopped: threading.Event) -> None:
    """Transfer until the stop; an aborted transfer is done again in another transaction."""
    poster = Poster(job, journal)
    poster.begin()
    for number in itertools.count():
        orders = [
            Order.at_random(f"{poster.name}/{job.incarnation}/{number}-{each}", poster.chance)
            for each in range(poster.chance.randint(1, AT_ONCE))
        ]
        while not poster.post(orders):
            pass
        if stopped.wait(len(orders) / job.records_per_s):
            return


if __name__ == "__main__":
    run(work)
