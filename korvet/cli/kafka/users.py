"""Users over the wire: AlterUserScramCredentials and DescribeUserScramCredentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import Request, request
from korvet.cli.kafka.user_facts import User
from korvet.security.salted import salted_password
from korvet.security.scram import TYPES, new_salt
from korvet.store.security.users import CredentialKey

_NUMBERS: Final = {name: number for number, name in TYPES.items()}


class KafkaUsers:
    """The users of the namespace that a listener serves.

    :raises BrokerError: every method, if the broker refuses.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(self, key: CredentialKey, password: str, iterations: int) -> None:
        """Give a user a password. It travels salted and hashed, which is as good as the password at this cluster."""
        salt = new_salt()
        upsertion = {
            "name": key.user,
            "mechanism": _NUMBERS[key.mechanism],
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(key.mechanism, password, salt, iterations),
        }
        self._alter(request("alter_user_scram_credentials", 0, upsertions=[upsertion]))

    def find(self) -> list[User]:
        """All users, one for each mechanism, in order."""
        # As Java's client: Kafka 4.1 answers nothing to null without the right.
        answer = self._client.ask(request("describe_user_scram_credentials", 0, users=()))
        check(answer.error_code, "users", answer.error_message)
        return sorted(
            User(result.user, TYPES[info.mechanism], int(info.iterations))
            for result in answer.results
            for info in result.credential_infos
            if info.mechanism in TYPES
        )

    def remove(self, user: str, mechanisms: Sequence[str]) -> bool:
        """Remove a user's passwords for these mechanisms; False if the user has none."""
        gone = False
        for mechanism in mechanisms:
            deletion = {"name": user, "mechanism": _NUMBERS[mechanism]}
            # One request for each, because a request that names a user twice is refused.
            message = request("alter_user_scram_credentials", 0, deletions=[deletion])
            gone = self._alter(message, ErrorCode.resource_not_found) or gone
        return gone

    def _alter(self, request: Request, passed: ErrorCode = ErrorCode.none) -> bool:
        """True if every change was made. A change with the code ``passed`` was not made, and is no error."""
        answer = self._client.ask_controller(request)
        for result in answer.results:
            if result.error_code is not passed:
                check(result.error_code, f"user {result.user!r}", result.error_message)
        return all(result.error_code is ErrorCode.none for result in answer.results)
