"""Forged tokens are rejected, whatever they claim; valid ones of every kind are accepted."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.auth.little_issuer import (
    AUDIENCE,
    ISSUER,
    RSA_KEY,
    Clock,
    LittleIssuer,
    part,
    public,
)

from enfold import Identity
from enfold.auth.issuers import ClaimPlaces, Issuer, Issuers, RefusedTokenError

PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
OTHER_KEY = rsa.generate_private_key(65537, 2048)


@pytest.fixture
def issuer() -> LittleIssuer:
    return LittleIssuer(Clock())


def issuers(issuer: LittleIssuer, **settings: Any) -> Issuers:
    trusted = Issuer(issuer=ISSUER, audiences=(AUDIENCE,), **settings)
    return Issuers([trusted], fetch=issuer.fetch, clock=issuer.clock)


@pytest.mark.parametrize("kid", ["r1", "e1", "d1"])
async def test_a_valid_token_is_accepted(issuer: LittleIssuer, kid: str) -> None:
    found = await issuers(issuer).identify(issuer.token(kid))
    assert found == Identity("ann", frozenset({"shop:order", "read"}))


def signed(claims: Any, header: dict[str, Any], key: Any = OTHER_KEY, algorithm: str = "RS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm, headers=header)


def by_secret(issuer: LittleIssuer, secret: bytes, algorithm: str = "HS256") -> str:
    """A token whose signature is made of something that everybody knows."""
    text = f"{part({'alg': algorithm, 'kid': 'r1', 'typ': 'JWT'})}.{part(issuer.claims())}"
    return f"{text}.{part(hmac.digest(secret, text.encode(), hashlib.sha256))}"


def with_parts(token: str, header: Any = None, claims: Any = None, signature: str | None = None) -> str:
    """A token some of whose parts are replaced, the signature being left as it was."""
    parts = token.split(".")
    new = (None if header is None else part(header), None if claims is None else part(claims), signature)
    return ".".join(mine or theirs for mine, theirs in zip(new, parts, strict=True))


def header_of(**changed: Any) -> dict[str, Any]:
    return {"alg": "RS256", "kid": "r1", "typ": "JWT", **changed}


def twice(issuer: LittleIssuer) -> str:
    """Claims that name their audience twice, honestly signed."""
    text = json.dumps(issuer.claims(aud="other")).replace('"aud"', f'"aud": "{AUDIENCE}", "aud"', 1)
    return jwt.PyJWS().encode(text.encode(), RSA_KEY, "RS256", {"kid": "r1"})


def raw(payload: bytes) -> str:
    return jwt.PyJWS().encode(payload, RSA_KEY, "RS256", {"kid": "r1"})


FORGED: dict[str, Callable[[LittleIssuer], str]] = {
    "alg none": lambda i: f"{part({'alg': 'none'})}.{part(i.claims())}.",
    "alg none with a signature": lambda i: with_parts(i.token(), header_of(alg="none")),
    "alg None in other letters": lambda i: with_parts(i.token(), header_of(alg="nOnE")),
    "no alg": lambda i: with_parts(i.token(), {"kid": "r1"}),
    "alg as a list": lambda i: with_parts(i.token(), header_of(alg=["RS256"])),
    "HS256 with the public key": lambda i: by_secret(i, PEM),
    "HS256 with the JWK": lambda i: by_secret(i, json.dumps(public("r1")).encode()),
    "HS256 with the modulus": lambda i: by_secret(i, public("r1")["n"].encode()),
    "HS256 with nothing": lambda i: by_secret(i, b""),
    "HS512 said, HS256 done": lambda i: by_secret(i, PEM, "HS512"),
    "another key": lambda i: signed(i.claims(), {"kid": "r1"}),
    "another key, no kid": lambda i: signed(i.claims(), {}),
    "a key of the issuer that it does not show": lambda i: i.token("r2"),
    "the name of one key, signed by another": lambda i: signed(i.claims(), {"kid": "e1"}, RSA_KEY),
    "an EC key that is not the issuer's": lambda i: signed(
        i.claims(), {"kid": "e1"}, ec.generate_private_key(ec.SECP256R1()), "ES256"
    ),
    "RS256 said of an EC key": lambda i: with_parts(i.token("e1"), header_of(kid="e1")),
    "another issuer": lambda i: i.token(iss="https://evil.example.com"),
    "an issuer with a slash more": lambda i: i.token(iss=f"{ISSUER}/"),
    "an issuer in other letters": lambda i: i.token(iss=ISSUER.upper()),
    "no issuer": lambda i: i.token(iss=...),
    "a list of issuers": lambda i: raw(json.dumps(i.claims(iss=[ISSUER])).encode()),
    "another audience": lambda i: i.token(aud="https://other.example.com/"),
    "a part of the audience": lambda i: i.token(aud=AUDIENCE[:-1]),
    "no audience": lambda i: i.token(aud=...),
    "no name in the audience": lambda i: i.token(aud=[]),
    "an audience that is no text": lambda i: i.token(aud=[{"name": AUDIENCE}]),
    "the audience twice": twice,
    "expired": lambda i: i.token(exp=int(i.clock()) - 31),
    "expired since just now": lambda i: i.token(exp=i.clock() - 30),
    "no end": lambda i: i.token(exp=...),
    "an end that is text": lambda i: raw(json.dumps(i.claims(exp="9999999999")).encode()),
    "an end that is true": lambda i: raw(json.dumps(i.claims(exp=True)).encode()),
    "an end beyond numbers": lambda i: raw(json.dumps(i.claims()).replace('"exp": 1', '"exp": 1e999, "x": 1').encode()),
    "not yet": lambda i: i.token(nbf=int(i.clock()) + 31),
    "issued in the future": lambda i: i.token(iat=int(i.clock()) + 31),
    "no subject": lambda i: i.token(sub=...),
    "an empty name": lambda i: i.token(sub=""),
    "a name that is a number": lambda i: raw(json.dumps(i.claims(sub=7)).encode()),
    "a name with a line break": lambda i: i.token(sub="ann\nbob"),
    "bound to a key": lambda i: i.token(cnf={"jkt": "x"}),
    "an unknown kid": lambda i: i.token(header={"kid": "unknown"}),
    "a path for a kid": lambda i: signed(i.claims(), {"kid": "../../../../dev/null"}),
    "a query for a kid": lambda i: signed(i.claims(), {"kid": "x' UNION SELECT 'key"}),
    "a list for a kid": lambda i: with_parts(i.token(), header_of(kid=["r1"])),
    "jku": lambda i: signed(i.claims(), {"kid": "r1", "jku": "https://evil.example.com/keys"}),
    "x5u": lambda i: signed(i.claims(), {"kid": "r1", "x5u": "https://evil.example.com/cert"}),
    "its own jwk": lambda i: signed(i.claims(), {"kid": "r1", "jwk": own_jwk()}),
    "its own jwk and no kid": lambda i: signed(i.claims(), {"jwk": own_jwk()}),
    "crit": lambda i: i.token(header={"crit": ["exp"]}),
    "an unencoded payload": lambda i: with_parts(i.token(), header_of(b64=False, crit=["b64"])),
    "other claims": lambda i: with_parts(i.token(), claims=i.claims(sub="root")),
    "another header": lambda i: with_parts(i.token(), header_of(x=1)),
    "half a signature": lambda i: i.token()[:-100],
    "no signature": lambda i: i.token().rpartition(".")[0] + ".",
    "an empty signature": lambda i: with_parts(i.token(), signature=part(b"\0")),
    "a signature of zeros": lambda i: with_parts(i.token("e1"), signature=part(b"\0" * 64)),
    "a signature with padding": lambda i: i.token() + "==",
    "a character more": lambda i: i.token() + "A",
    "four parts": lambda i: i.token() + ".x",
    "five parts, as if encrypted": lambda _: ".".join(["a"] * 5),
    "claims that are a list": lambda _: raw(b"[]"),
    "claims that are no JSON": lambda _: raw(b"{"),
    "claims without an end of depth": lambda _: raw(b"[" * 5000),
    "the token of another purpose": lambda i: i.token(header={"typ": "logout+jwt"}),
    "a type that is a number": lambda i: with_parts(i.token(), header_of(typ=7)),
    "too long": lambda i: i.token(note="x" * 20_000),
    "white space": lambda i: f" {i.token()}",
    "a line break": lambda i: f"{i.token()}\n",
    "nothing": lambda _: "",
    "dots": lambda _: "..",
    "not a JWT": lambda _: "enfold_secret",
    "not ASCII": lambda i: i.token().replace(".", "․", 1),
    "a surrogate": lambda i: i.token() + "\ud800",
}


def own_jwk() -> dict[str, Any]:
    from jwt.algorithms import RSAAlgorithm

    return {**json.loads(RSAAlgorithm.to_jwk(OTHER_KEY.public_key())), "kid": "r1"}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
async def test_a_forged_token_is_rejected(
    issuer: LittleIssuer, forge: Callable[[LittleIssuer], str], caplog: pytest.LogCaptureFixture
) -> None:
    verifier = issuers(issuer)
    token = forge(issuer)
    with caplog.at_level(logging.WARNING):
        assert await verifier.identify(token) is None
    told = caplog.messages[-1]
    assert told.startswith("A token was refused: ")
    assert all(len(each) < 8 or each not in caplog.text for each in token.split("."))
    with pytest.raises(RefusedTokenError) as raised:
        await verifier.check(token)
    assert str(raised.value) in told
    assert await verifier.identify(issuer.token()) is not None  # and the honest are not disturbed
    assert not any("evil" in url for url in issuer.fetched)


async def test_a_single_audience_is_no_list_of_its_letters(issuer: LittleIssuer) -> None:
    one = Issuer(issuer=ISSUER, audiences="shop", algorithms="RS256", claims=ClaimPlaces(scopes="scp"))  # type: ignore[arg-type]
    assert (one.audiences, one.algorithms, one.claims.scopes) == (("shop",), ("RS256",), ("scp",))
    verifier = Issuers([one], fetch=issuer.fetch, clock=issuer.clock)
    assert await verifier.identify(issuer.token(aud="shop")) is not None
    assert await verifier.identify(issuer.token(aud="sho")) is None


async def test_with_fewer_algorithms_the_others_are_refused(issuer: LittleIssuer) -> None:
    verifier = issuers(issuer, algorithms=("ES256",))
    assert await verifier.identify(issuer.token("e1")) is not None
    assert await verifier.identify(issuer.token("r1")) is None


async def test_a_token_without_a_kid_is_tried_with_the_keys_of_its_kind(issuer: LittleIssuer) -> None:
    token = jwt.encode(issuer.claims(), RSA_KEY, algorithm="RS256")
    assert await issuers(issuer).identify(token) is not None


async def test_a_header_that_we_do_not_know_is_no_reason_to_refuse(issuer: LittleIssuer) -> None:
    token = issuer.token(header={"x5t": "abc", "nonce": "n", "jku": "https://evil.example.com", "typ": "at+JWT"})
    assert await issuers(issuer).identify(token) is not None


KEYS_OF_NO_USE: dict[str, dict[str, Any]] = {
    "symmetric": {"kty": "oct", "k": "c2VjcmV0", "kid": "r1"},
    "for encryption": {**public("r1"), "use": "enc"},
    "for another algorithm": {**public("r1"), "alg": "RS512"},
    "not for verifying": {**public("r1"), "use": "sig", "key_ops": ["encrypt"]},
    "broken": {"kty": "RSA", "kid": "r1", "n": "!", "e": "AQAB"},
    "no key": {"kid": "r1"},
}


@pytest.mark.parametrize("key", KEYS_OF_NO_USE.values(), ids=KEYS_OF_NO_USE.keys())
async def test_a_key_that_is_not_for_signatures_is_left_out(issuer: LittleIssuer, key: dict[str, Any]) -> None:
    async def fetch(url: str) -> bytes:
        return (
            json.dumps({"keys": [key, public("e1"), "x"]}).encode() if url.endswith("keys") else await issuer.fetch(url)
        )

    trusted = Issuer(issuer=ISSUER, audiences=(AUDIENCE,))
    verifier = Issuers([trusted], fetch=fetch, clock=issuer.clock)
    assert await verifier.identify(issuer.token("r1")) is None
    assert await verifier.identify(issuer.token("e1")) is not None


def test_weak_keys_are_left_out() -> None:
    from jwt.algorithms import RSAAlgorithm

    from enfold.auth.issuers import read_key_set

    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505  # that is what is refused
    shown = json.dumps({"keys": [{**json.loads(RSAAlgorithm.to_jwk(weak.public_key())), "kid": "w"}]}).encode()
    assert read_key_set(shown) == ()


ODD_KEYS: dict[str, dict[str, Any]] = {
    "no kind": {"crv": "P-256", "x": "AQ", "y": "AQ"},
    "another kind than its curve has": {"kty": "RSA", "crv": "Ed25519", "n": "AQ", "e": "AQAB", "x": "AQ"},
    "a kind that is a list": {"kty": ["RSA"], "n": "AQ", "e": "AQAB"},
    "a shared secret": {"kty": "oct", "crv": "P-256", "k": "c2VjcmV0"},
    "nothing at all": {},
}


@pytest.mark.parametrize("odd", ODD_KEYS.values(), ids=ODD_KEYS)
def test_an_odd_key_is_left_out_and_the_others_stay(odd: dict[str, Any]) -> None:
    from jwt.algorithms import ECAlgorithm

    from enfold.auth.issuers import read_key_set

    good = json.loads(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    found = read_key_set(json.dumps({"keys": [odd, {**good, "kid": "good"}, odd]}).encode())
    assert [key.as_dict(private=False).get("kid") for key in found] == ["good"]


# --- claims -------------------------------------------------------------------------------------------------------

PLACES: dict[str, tuple[dict[str, Any], ClaimPlaces, Identity]] = {
    "scopes of Entra": ({"scope": ..., "scp": "a b"}, ClaimPlaces(), Identity("ann", frozenset({"a", "b"}))),
    "roles": ({"scope": ..., "roles": ["a"]}, ClaimPlaces(), Identity("ann", frozenset({"a"}))),
    "a path": (
        {"realm_access": {"roles": ["a"]}},
        ClaimPlaces(scopes=("realm_access.roles",)),
        Identity("ann", frozenset({"a"})),
    ),
    "a pointer": ({"x": {"a.b": "a"}}, ClaimPlaces(scopes=("/x/a.b",)), Identity("ann", frozenset({"a"}))),
    "a name with dots": (
        {"https://example.com/roles": ["a"]},
        ClaimPlaces(scopes=("https://example.com/roles",)),
        Identity("ann", frozenset({"a"})),
    ),
    "another id": ({"email": "a@b"}, ClaimPlaces("email", ()), Identity("a@b")),
    "resources": (
        {"may": {"project:42": ["read"]}},
        ClaimPlaces(scopes=(), resources="may"),
        Identity("ann", resources={"project:42": ["read"]}),
    ),
    "invalid scopes": ({"scope": 7, "roles": [1, None]}, ClaimPlaces(), Identity("ann")),
    "everything is not an issuer's to give": ({"scope": "* a"}, ClaimPlaces(), Identity("ann", frozenset({"a"}))),
}


@pytest.mark.parametrize(("claims", "places", "identity"), PLACES.values(), ids=PLACES.keys())
async def test_an_identity_is_found_in_the_claims(
    issuer: LittleIssuer, claims: dict[str, Any], places: ClaimPlaces, identity: Identity
) -> None:
    assert await issuers(issuer, claims=places).identify(issuer.token(**claims)) == identity


async def test_invalid_resources_are_refused(issuer: LittleIssuer) -> None:
    verifier = issuers(issuer, claims=ClaimPlaces(resources="may"))
    assert await verifier.identify(issuer.token(may={"project:42": "read"})) is None


async def test_several_issuers_and_audiences(issuer: LittleIssuer) -> None:
    other = Issuer(
        issuer="https://other.example.com", audiences=("x", "y"), jwks="https://login.example.com/keys", prefix="o/"
    )
    verifier = Issuers(
        [Issuer(issuer=ISSUER, audiences=(AUDIENCE,), prefix=""), other], fetch=issuer.fetch, clock=issuer.clock
    )
    theirs = issuer.token(iss="https://other.example.com", aud=["z", "y"])
    assert await verifier.identify(theirs) == Identity("o/ann", frozenset({"shop:order", "read"}))
    assert await verifier.identify(issuer.token(aud="y")) is None
