from typing import Any

import pytest

from enfold import AccessControl, CallError, Identity, OperationSpec
from enfold.operations.access import check_access, grants_all_of, may_call, may_list, narrower

READER = Identity("reader", frozenset({"read"}), {"project:42": ["read"], "team:*": ["list"]})

CASES: list[tuple[str, dict[str, Any], Identity | None, dict[str, Any], bool]] = [
    ("nothing required, no identity", {}, None, {}, True),
    ("something required, no identity", {"required_scopes": ["read"]}, None, {}, False),
    ("all scopes there", {"required_scopes": ["read"]}, READER, {}, True),
    ("one of all missing", {"required_scopes": ["read", "write"]}, READER, {}, False),
    ("one of any there", {"required_scopes_any": ["write", "read"]}, READER, {}, True),
    ("none of any there", {"required_scopes_any": ["write"]}, READER, {}, False),
    (
        "the resource named",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": 42},
        True,
    ),
    (
        "the resource named as text",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": "42"},
        True,
    ),
    (
        "another resource",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": 43},
        False,
    ),
    (
        "another action",
        {"resource_type": "project", "resource_action": "write", "resource_id": "id"},
        READER,
        {"id": 42},
        False,
    ),
    (
        "a whole number in another spelling",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": 42.0},
        True,
    ),
    (
        "a star as the id in the input is no star in the grant",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": "*"},
        False,
    ),
    ("no id, only the star fits", {"resource_type": "team", "resource_action": "list"}, READER, {}, True),
    ("no id, a single grant does not fit", {"resource_type": "project", "resource_action": "read"}, READER, {}, False),
    (
        "a value that is no id",
        {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
        READER,
        {"id": True},
        False,
    ),
    ("no resources at all", {"resource_type": "team", "resource_action": "list"}, Identity("x"), {}, False),
]


@pytest.mark.parametrize(("rules", "identity", "input", "allowed"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_caller_may_call(
    rules: dict[str, Any], identity: Identity | None, input: dict[str, Any], allowed: bool
) -> None:
    assert may_call(AccessControl(**rules), identity, input) is allowed


def test_a_list_shows_what_could_be_called_with_some_input() -> None:
    read_project = AccessControl(resource_type="project", resource_action="read", resource_id="id")
    assert may_list(read_project, READER)
    assert not may_list(AccessControl(resource_type="project", resource_action="write"), READER)
    assert not may_list(read_project, None)
    assert not may_list(AccessControl(("admin",)), READER)
    assert may_list(AccessControl(), None)


def test_a_denial_says_whether_the_caller_is_known() -> None:
    spec = OperationSpec(name="secret", access_control={"required_scopes": ["admin"]})
    with pytest.raises(CallError) as anonymous:
        check_access(spec, None, {})
    with pytest.raises(CallError) as reader:
        check_access(spec, READER, {})
    assert (anonymous.value.code, anonymous.value.details) == ("ACCESS_DENIED", {"reason": "no_identity"})
    assert (reader.value.code, reader.value.message) == ("OPERATION_NOT_FOUND", "Operation not found: secret")


def test_a_visible_operation_whose_resource_is_not_granted_is_denied() -> None:
    rules = {"resource_type": "project", "resource_action": "read", "resource_id": "id"}
    spec = OperationSpec(name="project", access_control=rules)
    with pytest.raises(CallError) as raised:
        check_access(spec, Identity("eve", resources={"project:1": ["read"]}), {"id": 2})
    assert (raised.value.code, raised.value.details) == ("ACCESS_DENIED", {"reason": "not_allowed"})


RULES: dict[str, dict[str, Any]] = {
    "scopes": {"required_scopes": ["a", "b"]},
    "one of some scopes": {"required_scopes_any": ["a", "b"]},
    "a resource": {"resource_type": "project", "resource_action": "read", "resource_id": "id"},
    "nothing": {},
    "public": {"public": True},
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_the_scope_of_everything_satisfies_every_rule(rule: dict[str, Any]) -> None:
    access, owner = AccessControl(**rule), Identity("owner", frozenset({"*"}))
    assert may_call(access, owner, {"id": 42})
    assert may_list(access, owner)


@pytest.mark.parametrize("name", ["scopes", "one of some scopes", "a resource"])
def test_a_public_operation_cannot_have_other_rules(name: str) -> None:
    with pytest.raises(ValueError, match="public"):
        AccessControl(**RULES[name], public=True)


GRANTS: list[dict[str, list[str]] | None] = [
    None,
    {"project:42": ["read"]},
    {"project:42": ["read", "write"]},
    {"project:*": ["read"]},
    {"project:*": ["write"], "project:42": ["read"]},
    {"project:urn:7": ["write"], "team:*": ["read"]},
]
WHO = [Identity("ann", frozenset(scopes), granted) for scopes in ({"w"}, {"x"}, {"*"}) for granted in GRANTS]
ON_PROJECTS = [
    AccessControl(required_scopes=scopes, resource_type="project", resource_action=action, resource_id="id")
    for scopes in ((), ("w",))
    for action in ("read", "write")
]


@pytest.mark.parametrize("second", WHO, ids=str)
@pytest.mark.parametrize("first", WHO, ids=str)
def test_the_intersection_of_two_grants_is_what_both_allow(first: Identity, second: Identity) -> None:
    both = narrower(first, second)
    inputs: list[dict[str, Any]] = [{"id": 42}, {"id": 7}, {"id": "urn:7"}, {}]
    for rule in (*ON_PROJECTS, AccessControl(required_scopes=("w",))):
        allowed = [[may_call(rule, each, given) for given in inputs] for each in (first, second, both)]
        assert allowed[2] == [one and two for one, two in zip(*allowed[:2], strict=True)], rule
        if grants_all_of(first, second):
            assert allowed[2] == allowed[1]
