"""The contracts in ``lua/`` agree with a server's list, the functions' bodies, and the callers in korvet."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import redis
from kio.schema.errors import ErrorCode

import korvet
from korvet.redis.resp import Named
from korvet.store.calls import KEPT
from korvet.store.contract import (
    CODES,
    FUNCTIONS,
    LIBRARY,
    MEANINGS,
    ContractError,
    Function,
    arguments,
    functions_in,
    library_files,
    words,
)
from korvet.store.library import library_version

ROOT: Final = Path(__file__).resolve().parents[2]
LUA: Final = ROOT / "lua"

BATCHES: Final = {
    "korvet_log_append", "korvet_log_append_transactional", "korvet_log_append_records", "korvet_log_touch",
}  # fmt: skip
"""Functions that callers call by position, because a call is made for each batch or acknowledgement."""
_ADDED: Final = {"outages", "id", "locator", "transactional_id"}
ADDED: Final = {"call": _ADDED, "_call": _ADDED | {"topic_id", "token", "group"}, "partial": _ADDED}
"""The arguments that a method adds to its callers' ones, by the method's name."""
SAID: Final = {"size": "len(data)", "batch": "data", "kind": "transactional", "is_next": "SEQUENCE"}
"""A part of the text by which hot callers give an argument, if it is not the argument's name."""
OPTIONS: Final = {"is_awaited", "has_optional_keys", "on_retry"}
"""The method's own arguments."""

SYNC = """\
korvet.define({
  name = 'group_sync', was = { 'group_give', '0.7' }, flags = { 'no-writes', 'allow-oom' },
  description = "hand a member its assignment",
  keys = 'group hash state   pending? hash what is held',
  args = [[
    member_id   generation:int of the
      member
    mode:one|other   assignments*2<=200 member_id, assignment ...
  ]],
  returns = [=[{code, [[assignment]]}, or
    {code} when refused]=],
  codes = 'UNKNOWN_MEMBER_ID',
}, function(keys, params)
  return { 0, params.member_id }
end)
"""


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _listed(server: redis.Redis) -> dict[str, tuple[str, frozenset[str]]]:
    """Description and flags of every function of the library on the server."""
    library: Any = server.function_list(library=LIBRARY)[0]
    fields = dict(zip(map(_plain, library[::2]), library[1::2], strict=True))
    listed = {}
    for function in fields["functions"]:
        of = dict(zip(map(_plain, function[::2]), function[1::2], strict=True))
        listed[_plain(of["name"])] = (_plain(of["description"]), frozenset(map(_plain, of["flags"])))
    return listed


def test_table_says_keys_arguments_reply_bound_and_flags() -> None:
    (function,) = functions_in("3-groups/sync.lua", SYNC)
    assert (function.name, function.description) == ("korvet_group_sync", "hand a member its assignment")
    assert (function.was, function.by_position) == (("group_give", "0.7"), False)
    assert function.keys == ("group", "pending?")
    assert function.args == ("member_id", "generation", "mode", "assignments...")
    assert (function.required, function.bound, function.most_args) == (3, 200, 203)
    assert function.codes == {"UNKNOWN_MEMBER_ID"}
    assert function.flags == {"no-writes", "allow-oom"}
    assert function.texts["returns"] == "{code, [[assignment]]}, or {code} when refused"
    assert words(function.texts["args"])[1:3] == ["generation:int of the member", "mode:one|other"]
    assert function.body == "  return { 0, params.member_id }\n"


@pytest.mark.parametrize(
    ("right", "wrong", "reason"),
    [
        ("  returns = ", "  gives = ", "korvet_group_sync has no returns"),
        ("  description", "  describes", "korvet_group_sync has no description"),
        ("mode:one|other", "mode=one", "'mode=one' is no key or argument"),
        ("returns = [=[", "returns = 1 [=[", "'returns = 1.*' is no field of a contract"),
    ],
)
def test_table_that_is_no_contract_is_refused(right: str, wrong: str, reason: str) -> None:
    with pytest.raises(ContractError, match=reason):
        list(functions_in("sync.lua", SYNC.replace(right, wrong, 1)))


def test_parser_reads_every_definition() -> None:
    source = b"".join(library_files().values())
    assert source.count(b"\nkorvet.define(") == len(FUNCTIONS)
    assert source.count(b"redis.register_function(") == 2


def test_server_lists_the_functions_of_the_contract(server: redis.Redis) -> None:
    names = {name: one for one in FUNCTIONS.values() for name in (one.name, *(f"korvet_{was}" for was in one.was[:1]))}
    assert _listed(server) == {name: (function.description, function.flags) for name, function in names.items()}


def _may_be_called(last: str, version: str) -> bool:
    """Whether front-ends of a minor version may run beside a library: those of the same one, and of the one before."""
    (of_last, minor_of_last), (major, minor) = ([int(part) for part in text.split(".")[:2]] for text in (last, version))
    return (major, minor) in ((of_last, minor_of_last), (of_last, minor_of_last + 1), (of_last + 1, 0))


@pytest.mark.parametrize(
    ("last", "version", "may_be"),
    [
        ("0.7", "0.7.2", True),
        ("0.7", "0.8.0", True),
        ("0.7", "0.9.0", False),
        ("0.9", "1.0.1", True),
        ("0.9", "1.1.0", False),
    ],
)
def test_former_name_is_listed_only_while_front_ends_may_call_it(last: str, version: str, may_be: bool) -> None:
    assert _may_be_called(last, version) == may_be
    assert [
        one.name for one in FUNCTIONS.values() if one.was and not _may_be_called(one.was[1], korvet.__version__)
    ] == []


@pytest.mark.parametrize("contract", [one for one in FUNCTIONS.values() if one.was], ids=lambda one: one.was[0])
def test_call_by_a_former_name_runs_the_function(server: redis.Redis, contract: Function) -> None:
    with pytest.raises(redis.ResponseError, match=f"ARGUMENTS {contract.name} takes the keys"):
        server.fcall(f"korvet_{contract.was[0]}", 0)


def test_function_that_reads_is_allowed_at_maxmemory() -> None:
    assert [
        name for name, function in FUNCTIONS.items() if function.read_only and "allow-oom" not in function.flags
    ] == []


def test_codes_of_contracts_are_those_of_the_library() -> None:
    assert {code for function in FUNCTIONS.values() for code in function.codes} <= CODES.keys()


def test_functions_with_late_or_unindexed_take_outages_or_an_id() -> None:
    for function in FUNCTIONS.values():
        assert "LATE" not in function.codes or "outages" in function.fixed
        assert "UNINDEXED" not in function.codes or {"id", "locator"} <= set(function.fixed)


def test_library_has_the_version_of_the_package(server: redis.Redis) -> None:
    assert library_version() == korvet.__version__
    assert server.fcall_ro("korvet_version", 0) == korvet.__version__.encode()


def test_every_file_ends_in_a_newline_and_only_the_first_has_a_shebang() -> None:
    texts = [path.read_text() for path in sorted(LUA.glob("*/*.lua"))]
    assert all(text.endswith("\n") for text in texts)
    assert [text.startswith("#!") for text in texts] == [True] + [False] * (len(texts) - 1)


def test_codes_are_kafkas_or_have_a_meaning() -> None:
    kafkas = {name: number for name, number in CODES.items() if number >= 0}
    assert kafkas == {name: ErrorCode[name.lower()] for name in kafkas}
    assert CODES.keys() == kafkas.keys() | MEANINGS.keys()
    assert all(MEANINGS.values())


def test_one_module_states_the_codes() -> None:
    stated = [path.name for path in (ROOT / "korvet").rglob("*.py") if "int(ErrorCode." in path.read_text()]
    assert stated == ["codes.py"]


@pytest.mark.parametrize("name", [name for name, one in FUNCTIONS.items() if not one.by_position])
def test_function_reads_the_arguments_of_its_contract_alone(name: str) -> None:
    contract = FUNCTIONS[name]
    params = contract.parameters[1] if len(contract.parameters) > 1 else "params"
    added = set(re.findall(rf"\b{params}\.(\w+)\b(?=.* = )", contract.body))
    read = set(re.findall(rf"\b{params}\.(\w+)", contract.body))
    assert read <= {*contract.fixed, contract.repeated, *added}
    assert not re.search(r"\bargs\b", contract.body)


@pytest.mark.parametrize("name", [name for name, one in FUNCTIONS.items() if one.by_position])
def test_function_by_position_reads_no_argument_beyond_its_contract(name: str) -> None:
    read = [int(number) for number in re.findall(r"\bargs\[(\d+)\]", FUNCTIONS[name].body)]
    assert max(read, default=0) <= FUNCTIONS[name].most_args


def test_commit_unpacks_the_arguments_of_its_contract() -> None:
    fixed = FUNCTIONS["korvet_group_commit"].fixed
    text = library_files()["3-groups/offsets.lua"].decode()
    unpacked = re.findall(r"local ([\w, ]+) = unpack\(args, 1, (\d+)\)", text)
    assert [int(number) for _, number in unpacked] == [len(fixed)] * 2
    for names, _ in unpacked:
        assert all(name in ("_", stated) for name, stated in zip(names.split(", "), fixed, strict=True))


CREATION: Final = "name id partitions:int configs most_topics:int? most_partitions:int?"
REFUSAL: Final = f"ARGUMENTS korvet_topic_create takes the arguments {CREATION}"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["t", "id", 1], f"{REFUSAL}; the call has 3"),
        (["t", "id", 1, "{}", "", "", ""], f"{REFUSAL}; the call has 7"),
        (["t", "id", "1.5", "{}"], "korvet_topic_create: partitions is not an integer: 1.5"),
    ],
)
def test_wrong_arguments_are_refused(server: redis.Redis, args: list[str | int], problem: str) -> None:
    with pytest.raises(redis.ResponseError, match=re.escape(problem)):
        server.fcall("korvet_topic_create", 3, "{k}:meta", "{k}:topics", "{k}:configs", *args)
    assert server.dbsize() == 0


class Call(NamedTuple):
    """A call in korvet's sources with a function's name among its arguments."""

    line: str
    method: str
    function: str
    names: frozenset[str]
    has_others: bool
    """Whether the call passes on names that are not written in it."""
    raw: int | None
    """The number of keys and arguments of a call as a command, else None."""


def _calls() -> Iterator[Call]:
    # Metrics have names of their own, and some are functions' names, too.
    metrics = ROOT / "korvet" / "metrics"
    for path in sorted((ROOT / "korvet").rglob("*.py")):
        text = path.read_text()
        # Each process of tests parses these files as it collects tests.
        if '"korvet_' in text and not path.is_relative_to(metrics):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    yield from _call(path, node)


def _call(path: Path, node: ast.Call) -> Iterator[Call]:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for at, arg in enumerate(node.args):
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str) and arg.value in FUNCTIONS:
            names = [keyword.arg for keyword in node.keywords if keyword.arg not in OPTIONS]
            yield Call(
                line=f"{path.relative_to(ROOT)}:{node.lineno}",
                method=method,
                function=arg.value,
                names=frozenset(name for name in names if name),
                has_others=None in names,
                raw=len(node.args) - at - 2 if "FCALL" in ast.unparse(node.args[at - 1]) else None,
            )


@pytest.mark.parametrize("call", list(_calls()), ids=lambda call: call.line)
def test_caller_gives_the_arguments_of_the_contract(call: Call) -> None:
    contract = FUNCTIONS[call.function]
    if call.function in BATCHES:
        assert not call.names
        return
    if call.raw is not None:
        assert call.raw == len(contract.keys) + len(contract.args)
        return
    assert call.method != "fcall", "it is to be called by names"
    given = call.names | ADDED.get(call.method, set())
    assert call.names <= {*contract.fixed, contract.repeated}
    assert call.has_others or given >= set(contract.fixed[: contract.required])


def test_only_callers_that_append_batches_pass_arguments_by_position() -> None:
    callers = {
        path.relative_to(ROOT / "korvet") for path in (ROOT / "korvet").rglob("*.py") if ".fcall(" in path.read_text()
    }
    assert callers == {Path("redis/client.py"), Path("store/calls.py"), Path("store/log/appending/append.py")}


def _lists(path: str, method: str) -> Iterator[list[str]]:
    """The tuples and the arguments of calls in a method of the package, each element as its text."""
    for defined in ast.walk(ast.parse((ROOT / "korvet" / "store" / path).read_text())):
        if isinstance(defined, ast.FunctionDef) and defined.name == method:
            for node in ast.walk(defined):
                if isinstance(node, ast.Tuple):
                    yield [ast.unparse(element) for element in node.elts]
                elif isinstance(node, ast.Call):
                    yield [ast.unparse(arg) for arg in node.args]


def _says(text: str, name: str) -> bool:
    return name in text or SAID.get(name, name) in text


@pytest.mark.parametrize(
    ("function", "first", "path", "method", "before"),
    [
        ("korvet_log_append", "topic_id", "log/appending/append.py", "_call", []),
        ("korvet_log_append_transactional", "is_next", "log/appending/append.py", "_call", ["*args"]),
        ("korvet_log_append_records", "kind", "log/appending/append.py", "_of_records", []),
    ],
)
def test_hot_caller_gives_arguments_in_the_order_of_the_contract(
    function: str, first: str, path: str, method: str, before: list[str]
) -> None:
    fixed, required = FUNCTIONS[function].fixed, FUNCTIONS[function].required
    wanted = [*before, *fixed[fixed.index(first) :]]
    least = len(before) + required - fixed.index(first)
    most = len(wanted) + bool(FUNCTIONS[function].repeated)
    lists = [given for given in _lists(path, method) if least <= len(given) <= most]
    assert any(all(_says(text, name) for text, name in zip(given, wanted, strict=False)) for given in lists)


def test_call_puts_named_arguments_in_the_order_of_the_contract() -> None:
    assert list(arguments("korvet_log_trim", {"offset": 5, "topic_id": "a"})) == ["a", 5]
    assert list(arguments("korvet_log_trim", {"epoch": 0, "offset": 5, "topic_id": "a"})) == ["a", 5, 0]
    assert list(arguments("korvet_log_trim", {"epoch": None, "offset": 5, "topic_id": "a"})) == ["a", 5]
    assert list(arguments("korvet_group_leave", {"members": iter(["m", ""]), "outages": ""})) == ["", "m", ""]
    assert list(arguments("korvet_group_leave", {"outages": ""})) == [""]
    assert list(arguments("korvet_version", {})) == []


@pytest.mark.parametrize(
    ("function", "named", "problem"),
    [
        ("korvet_log_trim", {"topic_id": "a"}, "korvet_log_trim lacks its argument 'offset'"),
        ("korvet_log_trim", {"topic_id": "a", "offset": None}, "korvet_log_trim lacks its argument 'offset'"),
        ("korvet_log_trim", {"topic_id": "a", "ofset": 1}, "korvet_log_trim takes no argument 'ofset'"),
        ("korvet_group_leave", {"outages": "", "members": "m"}, "korvet_group_leave takes an iterable as 'members'"),
        ("korvet_group_leave", {"members": ["m", ""]}, "korvet_group_leave lacks its argument 'outages'"),
        ("korvet_group_describe", {"partitions": ["t:0"]}, "korvet_group_describe lacks its argument 'outages'"),
        ("korvet_version", {"of": 1}, "korvet_version takes no argument 'of'"),
    ],
)
def test_error_names_a_missing_or_unknown_argument(function: str, named: dict[str, Named], problem: str) -> None:
    with pytest.raises(TypeError, match=re.escape(problem)):
        arguments(function, named)


def test_functions_of_groups_and_transactions_that_keep_what_clients_give_count_for_the_tenant() -> None:
    keep_little = {  # they name members, or partitions that exist, or remove what they name
        "korvet_group_await", "korvet_group_await_sync", "korvet_group_leave", "korvet_group_offset_delete",
        "korvet_group_offset_forget", "korvet_group_attach", "korvet_group_detach", "korvet_group_delete",
        "korvet_group_assign", "korvet_group_share_attach", "korvet_txn_complete",
    }  # fmt: skip
    kept = {
        name
        for name, one in FUNCTIONS.items()
        if one.keys and one.keys[0] in ("group", "id") and one.repeated and not one.read_only
    }
    assert kept - KEPT.keys() == keep_little
    for name, kept_args in KEPT.items():
        assert {*kept_args} <= {*FUNCTIONS[name].fixed, FUNCTIONS[name].repeated}
