"""Redaction: what a schema or a name calls a secret is in no record."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enfold.envelope import local_envelope
from enfold.operations import OperationSpec
from enfold.provenance import Recorder, options_from_mode, redact, verify
from enfold.provenance.records import ArtifactRef
from enfold.provenance.redaction import REDACTED, is_secret_name, redact_locator


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "PASSWORD",
        "userPassword",
        "new_password",
        "api_key",
        "apiKey",
        "apikey",
        "X-Api-Key",
        "APIKey",
        "client-secret",
        "access_token",
        "Authorization",
        "Set-Cookie",
        "private_key",
        "aws_secret_access_key",
        "pin",
        "tokens",
        "refreshTokens",
        "passwords",
        "api_keys",
        "client_secrets",
    ],
)
def test_a_name_that_promises_a_secret_is_known_in_any_spelling(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["name", "key", "keys", "max_tokens", "outputTokens", "author", "spin", "secretary", "passenger", "keyboard"],
)
def test_an_ordinary_name_has_no_hash(name: str) -> None:
    assert not is_secret_name(name)


SECRET: dict[str, Any] = {"type": "string", "writeOnly": True}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"v": SECRET}},
        {"properties": {"v": {"format": "password"}}},
        {"properties": {"v": {"$ref": "#/$defs/s"}}, "$defs": {"s": SECRET}},
        {"properties": {"v": {"$ref": "#s"}}, "$defs": {"s": {"$anchor": "s", **SECRET}}},
        {"allOf": [{"properties": {"v": SECRET}}]},
        {"anyOf": [{"properties": {"v": {"type": "string"}}}, {"properties": {"v": SECRET}}]},
        {"additionalProperties": SECRET},
        {"patternProperties": {"^v$": SECRET}},
        {"patternProperties": {"(": SECRET}},
        {"properties": {"v": {"nullable": True, **SECRET}}},
        {"dependentSchemas": {"v": {"properties": {"v": SECRET}}}},
        {"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"v": {"oneOf": [{"type": "null"}, SECRET]}}}}},
    ],
    ids=[
        "writeOnly",
        "password",
        "$ref",
        "anchor",
        "allOf",
        "anyOf",
        "additionalProperties",
        "patternProperties",
        "an unreadable pattern",
        "nullable",
        "dependentSchemas",
        "through oneOf",
    ],
)
def test_a_schema_that_calls_a_value_secret_is_followed(schema: Any) -> None:
    found = redact({"v": "hush"}, schema)
    assert found.value["v"] == REDACTED
    assert (found.paths, found.secrets) == (("/v",), frozenset({"hush"}))


def test_secrets_in_lists_and_below_secret_names_are_found() -> None:
    schema = {"properties": {"rows": {"items": {"properties": {"s": SECRET}}}, "pair": {"prefixItems": [{}, SECRET]}}}
    value = {
        "rows": [{"s": "one1"}, {"s": "two2"}],
        "pair": ["open", "closed"],
        "credentials": {"user": "me", "n": 12345},
    }
    found = redact(value, schema)
    assert found.value == {"rows": [{"s": REDACTED}] * 2, "pair": ["open", REDACTED], "credentials": REDACTED}
    assert found.secrets == {"one1", "two2", "closed", "12345"}


def test_a_value_without_secrets_is_the_same_object_and_an_endless_schema_ends() -> None:
    schema: dict[str, Any] = {"properties": {"next": {"$ref": "#"}}}
    value: dict[str, Any] = {"next": {"next": {"a": 1}}, "has_token": True, "password": None}
    assert redact(value, schema).value is value


@pytest.mark.parametrize(
    ("locator", "clean"),
    [
        ("https://me:pw@host/a?x=1&api_key=abc#top", "https://host/a?x=1&api_key=[redacted]#top"),
        ("postgres://u:p@db/x", "postgres://db/x"),
        ("https://host/cb#access_token=abc&state=1", "https://host/cb#access_token=[redacted]&state=1"),
        ("file:/tmp/a@b.json", "file:/tmp/a@b.json"),
        ("https://host/a@b", "https://host/a@b"),
    ],
)
def test_an_address_loses_its_credentials(locator: str, clean: str) -> None:
    assert redact_locator(locator) == clean


secrets = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=12, max_size=20)


@settings(max_examples=60)
@given(secrets)
def test_no_record_contains_a_secret_wherever_it_turns_up(secret: str) -> None:
    spec = OperationSpec(
        name="login", input_schema={"properties": {"phrase": {"type": "string", "format": "password"}}}
    )
    reference = ArtifactRef(
        schema_version="artifact.ref.v0.1",
        artifact_id="page",
        locator=f"https://host/{secret}",
        labels={"used": f"by {secret}"},
    )
    recording = Recorder().begin(options_from_mode("full"), artifacts=[reference])
    assert recording is not None
    evidence = [{"field": f"f {secret}", "source": "artifact:page", "note": secret}]
    result = {"session": {"token": secret}, "evidence": evidence, "echo": secret}
    envelope = recording.succeeded(spec, {"phrase": secret, "user": "me"}, local_envelope(result, "login"))
    assert envelope.provenance is not None
    assert secret not in str(envelope.provenance)
    assert envelope.provenance["evidence"][0]["note"] == REDACTED


def test_a_short_secret_that_occurs_in_a_digest_by_chance_changes_nothing() -> None:
    spec = OperationSpec(name="login")
    for pin in ("1234", "0000", "2222", "4711"):
        for number in range(40):
            recording = Recorder().begin(options_from_mode("full"))
            assert recording is not None
            envelope = recording.succeeded(spec, {"pin": pin, "number": number}, local_envelope(number, "login"))
            assert envelope.provenance is not None
            assert verify(envelope.provenance).faults == ()
