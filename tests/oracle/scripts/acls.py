"""Access rules in a cluster without an authorizer."""

from typing import Any, Final

from tests.oracle.script import Script, Step

_RULE: Final[dict[str, Any]] = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:alice", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
_FILTER: Final[dict[str, Any]] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
_OFF: Final = ("SECURITY_DISABLED",)

SCRIPTS: Final = (
    Script("describe acls without an authorizer", "describe_acls", Step("describe_acls", _FILTER, errors=_OFF)),
    Script("create acls without an authorizer", "create_acls",
           Step("create_acls", {"creations": [_RULE, {**_RULE, "resource_name": ""}]}, errors=_OFF),
           Step("create_acls", {"creations": []})),
    Script("delete acls without an authorizer", "delete_acls",
           Step("delete_acls", {"filters": [_FILTER, {**_FILTER, "resource_name_filter": "t"}]}, errors=_OFF),
           Step("delete_acls", {"filters": []})),
)  # fmt: skip
