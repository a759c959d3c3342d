"""Users' credentials, and logins at a listener without SASL."""

from typing import Any, Final

from tests.oracle.script import PRESENT, Script, Step

_SHA_256, _SHA_512, _UNKNOWN = 1, 2, 9
_STATE: Final = ("ILLEGAL_SASL_STATE",)


def _upsertion(name: str, iterations: int = 4096, mechanism: int = _SHA_256) -> dict[str, Any]:
    salted = {"salt": b"salt", "salted_password": bytes(32)}
    return {"name": name, "mechanism": mechanism, "iterations": iterations, **salted}


def _deletion(name: str, mechanism: int = _SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def _alter(deletions: list[dict[str, Any]], upsertions: list[dict[str, Any]]) -> Step:
    body = {"deletions": deletions, "upsertions": upsertions}
    return Step("alter_user_scram_credentials", body, errors=None)


def _described(name: str, *credentials: tuple[int, int]) -> Step:
    """DescribeUserScramCredentials, once Kafka's broker has seen the change that left these (mechanism, iterations).

    It lists two in any order.
    """
    seen: tuple[str, Any] = ("results[0].error_code", "RESOURCE_NOT_FOUND")
    if len(credentials) == 2:
        seen = ("results[0].credential_infos[1]", PRESENT)
    elif credentials:
        [(mechanism, iterations)] = credentials
        seen = ("results[0].credential_infos", [{"mechanism": mechanism, "iterations": iterations}])
    return Step("describe_user_scram_credentials", {"users": [{"name": name}]}, errors=None, until=seen)


SCRIPTS: Final = (
    Script("sasl handshake without sasl", "sasl_handshake",
           Step("sasl_handshake", {"mechanism": "PLAIN"}, errors=_STATE)),
    Script("sasl authenticate without sasl", "sasl_authenticate",
           Step("sasl_authenticate", {"auth_bytes": b"\0a\0b"}, errors=_STATE)),
    Script(
        "alter user scram credentials",
        "alter_user_scram_credentials",
        _alter([], []),
        _alter([_deletion("$g")], []),
        _alter([_deletion("")], [_upsertion("$g", 1)]),
        _alter([_deletion("$g", _UNKNOWN)], []),
        _alter([], [_upsertion("$g", 100_000)]),
        _alter([_deletion(""), _deletion("")], [_upsertion("")]),
        _alter([_deletion("$g", _UNKNOWN), _deletion("$g")], [_upsertion("$h", mechanism=_UNKNOWN)]),
        _alter([], [_upsertion("$g", 1), _upsertion("$h", 2**31 - 1)]),
        _alter([_deletion("$g")], [_upsertion("$g")]),
        _alter([], [_upsertion("$g")]),
        _alter([_deletion("$h"), _deletion("$h", _SHA_512)], [_upsertion("$w"), _upsertion("$w", mechanism=_SHA_512)]),
        _described("$g", (_SHA_256, 4096)),
        Step("describe_user_scram_credentials", {"users": [{"name": name} for name in ("$g", "$w", "$w")]},
             errors=None),
        _alter([], [_upsertion("$g", 16_384, _SHA_512)]),
        _described("$g", (_SHA_256, 4096), (_SHA_512, 16_384)),
        _alter([_deletion("$g"), _deletion("$u")], [_upsertion("$h", 16_385)]),
        _described("$g", (_SHA_512, 16_384)),
        _alter([_deletion("$g", _SHA_512)], []),
        _described("$g"),
    ),
)  # fmt: skip
