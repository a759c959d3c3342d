"""AlterUserScramCredentials (51), version 0: set and delete users' passwords, each with its own outcome.

A user may be named once in a request, whatever the mechanism. The request carries salted passwords; korvet keeps only
the keys that it derives from them.

Source: ScramControlManager.alterCredentials; KIP-554.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16

from korvet.api import api
from korvet.api.shared import needs
from korvet.api.shared.admin import change_failure
from korvet.api.shared.changes import noted
from korvet.api.shared.context import Context
from korvet.errors import KorvetError
from korvet.security.salted import MIN_ITERATIONS
from korvet.security.scram import MAX_ITERATIONS, TYPES, derive_credential
from korvet.store.security.users import MOST_AT_ONCE, Credential, CredentialKey
from korvet.wire import requests
from korvet.wire.writer import Fields

_LONGEST_NAME_BYTES = 512
_LONGEST_SALT_BYTES = 128
_NOT_FOUND = "Attempt to delete a user credential that does not exist"
_TWICE = "A user credential cannot be altered twice in the same request"


class _Problem(NamedTuple):
    code: ErrorCode
    message: str


_Requested = tuple[str, int, requests.ScramCredentialUpsertion | None]
"""A user, the number of a mechanism, and the new credential; None to delete the password."""
_Change = tuple[CredentialKey, Credential | None]


def _requested(request: requests.AlterUserScramCredentialsRequest) -> list[_Requested]:
    deletions: list[_Requested] = [(one.name, one.mechanism, None) for one in request.deletions]
    return deletions + [(one.name, one.mechanism, one) for one in request.upsertions]


def _refused(_ctx: Context, request: requests.AlterUserScramCredentialsRequest) -> Fields:
    return _failed(request, _Problem(needs.CODES[needs.CLUSTER], needs.MESSAGES[needs.CLUSTER]))


def _failed(request: requests.AlterUserScramCredentialsRequest, problem: _Problem) -> Fields:
    """The answer to a request that altered nobody."""
    return {"results": [_result(name, problem) for name in dict.fromkeys(name for name, _, _ in _requested(request))]}


@api(51, 0, 0, needs=needs.cluster(needs.ALTER, refused=_refused))
async def handle(ctx: Context, request: requests.AlterUserScramCredentialsRequest) -> Fields:
    try:
        return await _altered(ctx, request)
    except KorvetError as error:
        return _failed(request, _Problem(*change_failure(ctx, error)))


async def _altered(ctx: Context, request: requests.AlterUserScramCredentialsRequest) -> Fields:
    judged: dict[str, _Change | _Problem] = {}
    if request.deletions:
        await ctx.frontend.users.refresh()
    async for name, mechanism, upsertion in ctx.paced(_requested(request)):
        if name not in judged:
            judged[name] = _judged(name, mechanism, upsertion, ctx.frontend.users.credentials)
        elif not isinstance(judged[name], _Problem):
            judged[name] = _Problem(ErrorCode.duplicate_resource, _TWICE)
    changes = dict(one for one in judged.values() if not isinstance(one, _Problem))
    outcomes = {name: one for name, one in judged.items() if isinstance(one, _Problem)}
    if len(changes) > MOST_AT_ONCE:
        many = _Problem(ErrorCode.policy_violation, f"A request may alter at most {MOST_AT_ONCE} users")
        outcomes |= {key.user: many for key in changes}
    elif changes:
        did = [f"{'delete' if one is None else 'set'} {key.mechanism} of {key.user}" for key, one in changes.items()]
        with noted(ctx, did, is_security=True) as change:
            code, codes = await ctx.frontend.users.alter(changes)
            change.ended([code] * len(changes) if code else codes)
        outcomes |= _problems(changes, code, codes)
    return {"results": [_result(name, outcomes.get(name)) for name in judged]}


def _judged(
    name: str, number: int, upsertion: requests.ScramCredentialUpsertion | None, known: Container[CredentialKey]
) -> _Change | _Problem:
    """The change by a deletion or an upsertion.

    A deletion of a missing credential fails before an upsertion of the same user. Redis checks each deletion again.
    """
    mechanism = TYPES.get(number)
    if not name:
        return _Problem(ErrorCode.unacceptable_credential, "Username must not be empty")
    if mechanism is None:
        return _Problem(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    key = CredentialKey(mechanism, name)
    if upsertion is None:
        return (key, None) if key in known else _Problem(ErrorCode.resource_not_found, _NOT_FOUND)
    if upsertion.iterations < MIN_ITERATIONS:
        return _Problem(ErrorCode.unacceptable_credential, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        return _Problem(ErrorCode.unacceptable_credential, "Too many iterations")
    if len(name.encode()) > _LONGEST_NAME_BYTES or len(upsertion.salt) > _LONGEST_SALT_BYTES:
        return _Problem(ErrorCode.unacceptable_credential, "The user's name or the salt is too long")
    return key, derive_credential(mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations)


def _problems(changes: Iterable[CredentialKey], code: int, codes: Iterable[int]) -> dict[str, _Problem]:
    """The problems of changes after their call, by users."""
    if code:
        why = _Problem(ErrorCode(i16(code)), "The namespace has as many credentials as it may")
        return {key.user: why for key in changes}
    problem = _Problem(ErrorCode.resource_not_found, _NOT_FOUND)
    return {key.user: problem for key, one in zip(changes, codes, strict=True) if one}


def _result(name: str, problem: _Problem | None) -> Fields:
    if problem is None:
        return {"user": name, "error_code": 0, "error_message": None}
    return {"user": name, "error_code": problem.code, "error_message": problem.message}
