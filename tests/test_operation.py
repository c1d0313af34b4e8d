import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from enfold import AccessControl, Context, Identity, OperationSpec
from enfold.operations import ErrorSchema, LogMessage, Policy, Progress, legal_names, operation_from_function
from enfold.operations.spec import (
    SPEC_FIELDS,
    OperationOptions,
    SpecFields,
    WantedName,
    distinct_names,
    with_hash,
)


def spec(**changes: Any) -> OperationSpec:
    fields: dict[str, Any] = {
        "namespace": "shop",
        "name": "buy",
        "type": "mutation",
        "title": "Buy",
        "description": "Buy a thing.",
        "tags": ["a"],
        "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}},
        "output_schema": {"type": "string"},
        "error_schemas": [{"code": "SOLD_OUT", "description": "None left", "schema": {}, "http_status": 409}],
        "access_control": {"required_scopes": ["buy"]},
        "idempotent": True,
        "timeout": 5,
        "meta": {"k": [1]},
    }
    return OperationSpec(**{**fields, **changes})


def test_a_spec_survives_json() -> None:
    again = OperationSpec.from_dict(spec().to_dict())
    assert again == spec()
    assert again.error_schemas == (ErrorSchema("SOLD_OUT", "None left", {}, 409),)
    assert again.access_control == AccessControl(("buy",))


def test_equal_specs_have_equal_hashes_and_digests_and_others_do_not() -> None:
    assert len({spec(), spec(), spec(timeout=6)}) == 2
    assert spec().digest == spec().digest
    reordered = {"properties": {"id": {"type": "integer"}}, "type": "object"}
    assert spec(input_schema=reordered).digest == spec().digest
    assert spec(description="x").digest != spec().digest


def test_the_digest_is_the_same_in_every_process() -> None:
    program = "from enfold import OperationSpec; print(OperationSpec(name='a', meta={'b': 1, 'a': 2}).digest)"
    found = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    }
    assert found == {OperationSpec(name="a", meta={"a": 2, "b": 1}).digest}


def test_a_spec_does_not_change_but_can_be_replaced() -> None:
    original = spec()
    with pytest.raises(AttributeError, match="replace"):
        original.name = "sell"
    changed = original.replace(name="sell")
    assert (changed.id, original.id) == ("shop.sell", "shop.buy")


def test_schemas_given_as_functions_are_made_when_first_read() -> None:
    made: list[str] = []

    def schema() -> dict[str, Any]:
        made.append("made")
        return {"type": "integer"}

    lazy = OperationSpec(name="a", output_schema=schema)
    copy = lazy.replace(namespace="x")
    assert made == []
    assert lazy.output_schema is lazy.output_schema
    assert copy.output_schema == {"type": "integer"}
    assert made == ["made", "made"]


def test_a_spec_accepts_the_fields_it_stores() -> None:
    given, options = SpecFields.__annotations__.keys(), OperationOptions.__annotations__.keys()
    assert given == SPEC_FIELDS == spec().to_dict().keys()
    from_the_signature = {"input_schema", "output_schema", "values"}
    policies = {*Policy.__struct_fields__} - {"limits", "once", "payloads"}
    assert (
        options
        == (given - from_the_signature - {"access_control"}) | {"access", "inline", "select", "middleware"} | policies
    )


@pytest.mark.parametrize(("fields", "said"), [({}, "needs a name"), ({"name": "a", "timout": 5}, "no field 'timout'")])
def test_a_field_that_is_missing_or_misspelt_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        OperationSpec(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "verb"}, "Unknown operation type 'verb'"),
        ({"access_control": {"scopes": ["a"]}}, "Unknown access rule 'scopes'"),
        ({"access_control": {"required_scopes": 3}}, "Wrong access rule"),
    ],
    ids=["type", "access key", "access value"],
)
def test_a_wrong_field_is_reported_at_once(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec(**fields)


def test_a_wrong_policy_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="Unknown normalize policy 'fix'"):
        Policy(normalize="fix")  # type: ignore[arg-type]  # the point of the test


def test_imported_names_become_legal_and_clashes_get_a_hash_of_the_original() -> None:
    names = legal_names(["get user", "get_user", "get/user", "plain", "x" * 70, ""])
    assert names["get_user"] == "get_user"
    assert names["plain"] == "plain"
    assert names["get user"].startswith("get_user_")
    assert names["get/user"].startswith("get_user_")
    assert names["get user"] != names["get/user"]
    assert names["x" * 70] == "x" * 64
    assert names[""] == "_"
    assert len(set(names.values())) == len(names)


def test_a_name_that_was_chosen_to_be_the_hashed_name_of_another_does_not_become_it() -> None:
    first = with_hash("a_b", "a.b")
    second = with_hash("a_b", "a.b ")  # what it becomes when the first is taken
    wanted = ["a_b", "a.b", first, second.replace("_b_", ".b_"), "plain"]
    names = legal_names(wanted)
    assert len(set(names.values())) == len(wanted)
    assert (names["a_b"], names[first], names["plain"]) == ("a_b", first, "plain")
    assert legal_names(reversed(wanted)) == names
    assert len(distinct_names([WantedName("a b", "GET /a")] * 2)) == 2  # of one thing told twice, both are given back


def test_a_function_with_an_illegal_name_keeps_the_original_in_its_meta() -> None:
    def größe() -> int:  # noqa: PLC2401  # the point of the test
        return 1

    found = operation_from_function(größe).spec
    assert found.name == "gr__e"
    assert found.meta == {"original_name": "größe"}


def test_a_context_has_its_own_id_and_counts_its_time_down() -> None:
    first, second = Context(), Context(timeout=100)
    assert first.request_id == first.request_id != second.request_id
    assert first.remaining() is None
    left = second.remaining()
    assert left is not None
    assert 99 < left <= 100
    assert Context(timeout=-1).remaining() == 0
    assert Context(timeout=-1).cancelled


def test_a_child_context_carries_the_caller_the_time_and_the_parents_id() -> None:
    parent = Context(timeout=100)
    child = parent.child()
    assert child.parent_request_id == parent.request_id
    assert child.request_id != parent.request_id
    assert (child.remaining() or 0) <= 100
    assert not child.cancelled
    parent.cancel()
    assert child.cancelled


def test_a_context_passes_progress_and_messages_to_its_listener() -> None:
    heard: list[Any] = []
    context = Context(notify=heard.append)
    context.progress(1, 2, "half")
    context.log("careful", "warning", {"a": 1})
    assert heard == [Progress(1, 2, "half"), LogMessage("careful", "warning", {"a": 1})]
    Context().progress(1)  # without a listener nothing happens


def test_an_env_exists_only_inside_a_call() -> None:
    with pytest.raises(RuntimeError, match="only available inside a call"):
        _ = Context().env


def test_a_spec_can_be_copied_and_pickled() -> None:
    original = operation_from_function(lambda x: x, name="f").spec
    assert pickle.loads(pickle.dumps(spec())) == spec()  # noqa: S301  # our own bytes
    assert copy.deepcopy(original) == original


def test_equal_numbers_make_equal_digests() -> None:
    assert spec(timeout=60).digest == spec(timeout=60.0).digest
    assert spec(meta={"a": {1, 2, 3}}).digest == spec(meta={"a": {3, 2, 1}}).digest


@pytest.mark.parametrize("timeout", ["5", 0, -1, True, float("nan")], ids=repr)
def test_an_invalid_timeout_is_refused_at_once(timeout: Any) -> None:
    with pytest.raises(ValueError, match="A timeout must be a number of seconds"):
        spec(timeout=timeout)


def test_an_access_rule_that_would_let_everybody_in_is_refused() -> None:
    with pytest.raises(ValueError, match="also needs resource_type"):
        AccessControl(resource_action="read", resource_id="id")
    assert AccessControl(required_scopes="task:write").required_scopes == ("task:write",)  # type: ignore[arg-type]  # as users write it
    assert Identity("me", scopes="admin").scopes == {"admin"}  # type: ignore[arg-type]  # as users write it


_FORK = """
import os
from enfold.operations import new_request_id
new_request_id()
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, new_request_id().encode())
    os._exit(0)
own = {new_request_id() for _ in range(200)}
assert len(own) == 200 and all(len(each) == 32 for each in own)
assert os.read(reading, 32).decode() not in own
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_does_not_continue_with_the_request_ids_of_its_parent() -> None:
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=30)
