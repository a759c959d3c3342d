"""The records of the bank's topics: orders, entries of the ledger, balances; all of them JSON."""

import json
import random
from dataclasses import asdict, dataclass
from typing import Final, Self

from scripts.chaosrun.journal import Partition

ORDERS: Final = "orders"
LEDGER: Final = "ledger"
BALANCES: Final = "balances"
TOPICS: Final = (ORDERS, LEDGER, BALANCES)
PARTITIONS: Final = 4
ACCOUNTANT_COUNT: Final = 2
ACCOUNTS: Final = 40
CLERKS: Final = "clerks"
ACCOUNTANTS: Final = "accountants"
MOST: Final = 1000


def partition_of(account: int) -> int:
    """The partition of an account's entries and balances, with any client."""
    return account % PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order to move money from one account to another. `transfer` is its name, which no other has."""

    transfer: str
    debtor: int
    creditor: int
    amount: int

    @classmethod
    def at_random(cls, transfer: str, chance: random.Random) -> Self:
        debtor, creditor = chance.sample(range(ACCOUNTS), 2)
        return cls(transfer=transfer, debtor=debtor, creditor=creditor, amount=chance.randint(1, MOST))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One half of a transfer, the entry `number` of the `count` that the transaction writes.

    `transaction` is client/incarnation/n of that client, n growing.
    """

    transaction: str
    number: int
    count: int
    transfer: str
    account: int
    amount: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """An entry with its partition and offset."""

    partition: Partition
    offset: int
    entry: Entry


def entries(transaction: str, orders: list[Order]) -> list[Entry]:
    """The entries of a transaction that carries out these orders."""
    halves = [
        half
        for order in orders
        for half in ((order, order.debtor, -order.amount), (order, order.creditor, order.amount))
    ]
    return [
        Entry(
            transaction=transaction, number=number, count=len(halves), transfer=order.transfer, account=account,
            amount=amount,
        )
        for number, (order, account, amount) in enumerate(halves)
    ]  # fmt: skip
