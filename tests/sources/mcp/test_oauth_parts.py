"""The parts of a login, one by one: challenges, addresses, signatures, files, and the page one comes back to."""

import asyncio
import socket
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.waiting import PATIENCE

from enfold import CallError
from enfold.auth.token_endpoint import GrantRefusedError, authorization_server_urls
from enfold.http_client.urls import read_endpoint
from enfold.sources.mcp.http import Refusal
from enfold.sources.mcp.oauth import FileStore, LoginTokens, RegisteredClient, Saved, UserLogin
from enfold.sources.mcp.oauth.callback_page import open_callback_page
from enfold.sources.mcp.oauth.discovery import (
    AddressPolicy,
    AuthorityClient,
    covers,
    denied,
    read_challenges,
    resource_metadata_urls,
    token_challenge,
)
from enfold.sources.mcp.oauth.grants import ProofKey, load_signer, new_key

# --- challenges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Bearer", [("bearer", {})]),
        ('Bearer scope="a b", error="x"', [("bearer", {"scope": "a b", "error": "x"})]),
        ("bearer scope=a , ERROR = x", [("bearer", {"scope": "a", "error": "x"})]),
        (r'Bearer realm="say \"hi\", you"', [("bearer", {"realm": 'say "hi", you'})]),
        ('Basic realm="x", Bearer scope="a"', [("basic", {"realm": "x"}), ("bearer", {"scope": "a"})]),
        ('Negotiate, Bearer scope="a"', [("negotiate", {}), ("bearer", {"scope": "a"})]),
        ('Negotiate abc==, Bearer scope="a"', [("negotiate", {}), ("bearer", {"scope": "a"})]),
        ('Bearer scope="first", scope="second"', [("bearer", {"scope": "first"})]),
        ('Bearer scope="never closed', [("bearer", {})]),
        ("", []),
    ],
)
def test_a_challenge_is_read_as_it_is_written(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    found = [(challenge.scheme, challenge.parameters) for challenge in read_challenges(header)]
    assert found[: len(expected)] == expected


def test_the_challenge_for_a_token_is_found_among_several_headers() -> None:
    found = token_challenge(["Basic realm=x", 'DPoP algs="ES256"', 'Bearer error="insufficient_scope", scope="a b"'])
    assert (found.scheme, found.scopes, found.wants_more_scopes) == ("bearer", ("a", "b"), True)
    assert token_challenge(['DPoP algs="ES256"', "Bearer"], prefers_proof=True).wants_proof
    assert token_challenge(["Basic realm=x"]).scheme == ""


# --- addresses ----------------------------------------------------------------------------------------------------

WELL = "https://x.org/.well-known"


@pytest.mark.parametrize(
    ("server", "named", "expected"),
    [
        ("https://x.org/a/mcp", "", [f"{WELL}/oauth-protected-resource/a/mcp", f"{WELL}/oauth-protected-resource"]),
        ("https://x.org", "", [f"{WELL}/oauth-protected-resource"]),
        ("https://x.org/", "https://x.org/m", ["https://x.org/m", f"{WELL}/oauth-protected-resource"]),
    ],
)
def test_a_server_is_asked_about_itself_in_order(server: str, named: str, expected: list[str]) -> None:
    assert resource_metadata_urls(server, named) == expected


@pytest.mark.parametrize(
    ("issuer", "expected"),
    [
        ("https://x.org", [f"{WELL}/oauth-authorization-server", f"{WELL}/openid-configuration"]),
        ("https://x.org/", [f"{WELL}/oauth-authorization-server", f"{WELL}/openid-configuration"]),
        (
            "https://x.org/t/1",
            [
                f"{WELL}/oauth-authorization-server/t/1",
                f"{WELL}/openid-configuration/t/1",
                "https://x.org/t/1/.well-known/openid-configuration",
            ],
        ),
    ],
)
def test_an_issuer_is_asked_about_itself_in_order(issuer: str, expected: list[str]) -> None:
    assert authorization_server_urls(issuer) == expected


@pytest.mark.parametrize(
    ("resource", "is_ours"),
    [
        ("https://x.org/a/mcp", True),
        ("https://x.org/a/mcp/", True),
        ("https://x.org/a", True),
        ("https://x.org", True),
        ("HTTPS://X.ORG:443/a", True),
        ("https://x.org/a/m", False),
        ("https://x.org/a/mcp/deeper", False),
        ("https://x.org/b", False),
        ("https://y.org/a/mcp", False),
        ("http://x.org/a/mcp", False),
        ("https://x.org:8443/a/mcp", False),
        ("https://x.org/a/mcp#part", False),
        ("https://x.org:port/a", False),
        ("x.org", False),
    ],
)
def test_a_token_is_asked_for_only_for_the_server_itself(resource: str, is_ours: bool) -> None:
    assert covers(resource, "https://x.org/a/mcp") is is_ours


@pytest.mark.parametrize(
    ("server", "url", "is_allowed"),
    [
        ("https://x.org/mcp", "https://login.org/token", True),
        ("https://x.org/mcp", "http://login.org/token", False),
        ("https://x.org/mcp", "http://127.0.0.1:9/token", False),
        ("https://x.org/mcp", "https://localhost/token", False),
        ("https://x.org/mcp", "https://localhost./token", False),
        ("https://x.org/mcp", "https://x.localhost./token", False),
        ("https://x.org/mcp", "https://0.0.0.0/token", False),
        ("https://x.org/mcp", "https://[::]/token", False),
        ("https://x.org/mcp", "https://[::ffff:127.0.0.1]/token", False),
        ("https://x.org/mcp", "https://2130706433/token", False),
        ("https://x.org/mcp", "https://127.1/token", False),
        ("https://x.org/mcp", "https://0x7f.1/token", False),
        ("https://x.org/mcp", "https://login.org/\x1b]0;title\x07", False),
        ("https://x.org/mcp", "https://login.org/a b", False),
        ("https://x.org/mcp", "https://login.org\n/token", False),
        ("https://x.org/mcp", "https://3com.example/token", True),
        ("https://x.org/mcp", "https://10.0.0.7/token", False),
        ("https://x.org/mcp", "https://169.254.169.254/token", False),
        ("https://x.org/mcp", "https://[fd00:ec2::254]/token", False),
        ("https://x.org/mcp", "https://[64:ff9b::7f00:1]/token", False),
        ("https://x.org/mcp", "https://127。0。0。1/token", False),
        ("https://x.org/mcp", "https://①②⑦.0.0.1/token", False),
        ("https://x.org/mcp", "https://ｌocalhost/token", False),
        ("https://x.org/mcp", "https://bücher.example/token", True),
        ("https://10.0.0.1/mcp", "https://10.0.0.7/token", True),
        ("https://10.0.0.1/mcp", "https://127.0.0.1/token", False),
        ("https://10.0.0.1/mcp", "https://169.254.169.254/token", False),
        ("http://127.0.0.1:8000/mcp", "https://169.254.169.254/token", False),
        ("https://x.org/mcp", "file:///etc/passwd", False),
        ("https://x.org/mcp", "javascript:alert(1)", False),
        ("https://x.org/mcp", "https://user@login.org/", False),
        ("http://127.0.0.1:8000/mcp", "http://localhost:9/token", True),
        ("http://127.0.0.1:8000/mcp", "http://[::1]:9/token", True),
        ("http://127.0.0.1:8000/mcp", "http://login.org/token", False),
    ],
)
def test_a_login_only_contacts_allowed_addresses(server: str, url: str, is_allowed: bool) -> None:
    policy = AddressPolicy(server, "x")
    if is_allowed:
        policy.check(url, "the page")
        return
    with pytest.raises(CallError) as caught:
        policy.check(url, "the page")
    assert caught.value.code == "ACCESS_DENIED"


@pytest.mark.parametrize("host", ["localhost.", socket.gethostname(), "127.0.0.1", "127。0。0。1"])
@pytest.mark.parametrize("work", ["find", "post_json", "post_form"])
async def test_a_name_that_resolves_to_this_machine_is_not_contacted_for_a_remote_server(host: str, work: str) -> None:
    """Neither for metadata nor with a secret, whatever was checked before: what counts is the address connected to."""
    came = asyncio.Event()
    server = await asyncio.start_server(lambda *_: came.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with AuthorityClient(AddressPolicy("https://mcp.example.org/mcp", "x")) as authority:
        url = f"https://{host}:{port}/token"
        questions: dict[str, Any] = {
            "find": lambda: authority.find(url, dict),
            "post_json": lambda: authority.post_json(url, {}, dict),
            "post_form": lambda: authority.post_form(url, {"client_secret": "s"}, {}),
        }
        with pytest.raises(CallError) as caught:
            await questions[work]()
    assert caught.value.code in ("ACCESS_DENIED", "UNAVAILABLE")
    assert not came.is_set()
    server.close()


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("", {"8.8.8.8"}),
        ("8.8.4.4", {"8.8.8.8"}),
        ("10.1.1.1", {"8.8.8.8", "10.0.0.7"}),
        ("127.0.0.1", {"8.8.8.8", "10.0.0.7", "127.0.0.1"}),
        ("169.254.1.1", {"8.8.8.8", "10.0.0.7", "169.254.169.254"}),
    ],
)
def test_the_networks_of_a_login_are_those_of_the_server_as_it_answered(peer: str, allowed: set[str]) -> None:
    policy = AddressPolicy("https://mcp.corp.test/mcp", "x")
    policy.learn("https://elsewhere.test/", "127.0.0.1")  # of another server nothing is learned
    policy.learn("https://mcp.corp.test/.well-known/oauth", peer)
    addresses = ("8.8.8.8", "10.0.0.7", "127.0.0.1", "169.254.169.254")
    endpoint = read_endpoint("https://login.test")
    assert {address for address in addresses if policy.allows(endpoint, address)} == allowed


def test_addresses_named_by_the_user_may_be_anywhere() -> None:
    policy = AddressPolicy("https://mcp.example.org/mcp", "x")
    policy.trust("https://sso.corp.test:8443/realm")
    assert policy.allows(read_endpoint("https://sso.corp.test:8443"), "10.0.0.7")
    assert not policy.allows(read_endpoint("https://sso.corp.test"), "10.0.0.7")
    assert policy.allows(read_endpoint("https://mcp.example.org"), "127.0.0.1")


# --- signatures ---------------------------------------------------------------------------------------------------

RSA = rsa.generate_private_key(65537, 2048)
KEYS: dict[str, Any] = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "RS256": RSA,
    "PS384": RSA,
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem(key: Any) -> str:
    written: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return written.decode()


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_statement_is_signed_so_that_others_can_check_it(algorithm: str) -> None:
    key = KEYS[algorithm]
    signed = load_signer(pem(key), algorithm).sign({"sub": "us"}, kid="k1")
    assert jwt.decode(signed, key.public_key(), algorithms=[algorithm]) == {"sub": "us"}
    assert jwt.get_unverified_header(signed) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}


@pytest.mark.parametrize(("key", "usual"), [("ES256", "ES256"), ("PS384", "RS256"), ("EdDSA", "EdDSA")])
def test_without_an_algorithm_a_key_signs_in_its_usual_way(key: str, usual: str) -> None:
    assert jwt.get_unverified_header(load_signer(pem(KEYS[key])).sign({}))["alg"] == usual


def test_an_invalid_key_is_not_repeated() -> None:
    with pytest.raises(CallError) as caught:
        load_signer("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n")
    assert caught.value.code == "VALIDATION_ERROR"
    assert "c2VjcmV0" not in repr(caught.value)


def test_a_key_does_not_sign_with_the_algorithm_of_another() -> None:
    with pytest.raises(CallError, match="cannot sign with RS256"):
        load_signer(pem(KEYS["EdDSA"]), "RS256")


def test_a_proof_fits_one_request_with_one_token() -> None:
    key = ProofKey(new_key().pem)  # as it comes out of a store
    proofs = [key.prove("POST", "https://x.org/mcp?q=1#part", token="t0ken", nonce="n1") for _ in range(2)]
    header = jwt.get_unverified_header(proofs[0])
    assert (header["typ"], header["alg"], sorted(header["jwk"])) == ("dpop+jwt", "ES256", ["crv", "kty", "x", "y"])
    public: Any = jwt.PyJWK(header["jwk"]).key
    first, second = [jwt.decode(proof, public, algorithms=["ES256"]) for proof in proofs]
    assert (first["htm"], first["htu"], first["nonce"]) == ("POST", "https://x.org/mcp", "n1")
    assert first["ath"] == urlsafe_b64encode(sha256(b"t0ken").digest()).decode().rstrip("=")
    assert first["jti"] != second["jti"]


# --- what others say ----------------------------------------------------------------------------------------------


def test_secrets_that_a_server_repeats_are_hidden() -> None:
    refused = GrantRefusedError("https://x.org/token", 400, "not s3/cret", "client_secret=s3%2Fcret is s3/cret")
    assert str(refused.without(["s3/cret", ""])) == "x.org rejected the request: client_secret=… is …"
    assert refused.without(["s3/cret"]).error == "not …"


def test_upstream_text_cannot_move_a_cursor() -> None:
    assert denied("It says \x1b[2J\x07no\n\u202eon").message == "It says [2J no on"


# --- what is kept -------------------------------------------------------------------------------------------------

SAVED = Saved(
    "https://login.org",
    "",
    RegisteredClient("id", "s3cret", "client_secret_basic"),
    LoginTokens("t0ken", "r3fresh", 5.0),
    ("a",),
)


def test_a_login_is_stored_for_its_server_only(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "logins")
    store.save("https://x.org/mcp", SAVED)
    assert FileStore(tmp_path / "logins").load("https://x.org/mcp") == SAVED
    assert store.load("https://y.org/mcp") is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"server": "\xff"}', b'{"x": ' + b"[" * 100_000, b'{"server": 1, "saved": {}}'],
    ids=["empty", "cut", "no text", "deep", "other"],
)
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: bytes) -> None:
    store = FileStore(tmp_path)
    store.save("https://x.org/mcp", SAVED)
    [file] = tmp_path.iterdir()
    file.write_bytes(text)
    assert store.load("https://x.org/mcp") is None


def test_a_symbolic_link_instead_of_a_login_file_is_not_followed(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "logins")
    store.save("https://x.org/mcp", SAVED)
    [file] = (tmp_path / "logins").iterdir()
    file.unlink()
    file.symlink_to(tmp_path / "public")
    store.save("https://x.org/mcp", SAVED)
    assert not (tmp_path / "public").exists()
    assert file.stat().st_mode & 0o777 == 0o600


def test_secrets_are_not_shown_where_values_are() -> None:
    refusal = Refusal(401, (), "Bearer t0ken", "Bearer t0ken")
    shown = repr([SAVED, UserLogin(client_id="id", client_secret="s3cret", private_key="k3y"), refusal])
    assert not [secret for secret in ("s3cret", "t0ken", "r3fresh", "k3y") if secret in shown]
    assert "'id'" in shown


# --- the way back -------------------------------------------------------------------------------------------------


async def test_only_the_page_of_the_login_is_answered() -> None:
    async with open_callback_page("http://127.0.0.1/back", 0) as page, httpx2.AsyncClient() as browser:
        page.state = "é"
        base = page.redirect_uri.removesuffix("/back")
        others = [
            await browser.get(f"{base}/favicon.ico"),
            await browser.post(f"{base}/back?code=1"),
            await browser.get(f"{base}/back"),
            await browser.head(f"{base}/back?code=1&state=%C3%A9"),
            await browser.get(f"{base}/back?code=1"),
            await browser.get(f"{base}/back?code=1&state=%C3%A8"),
            await browser.get(f"{base}/back?<script>"),
        ]
        assert {page.status_code for page in others} == {404}
        assert "script" not in others[-1].text
        thanks = await browser.get(f"{base}/back?code=2&state=%C3%A9")
        assert (thanks.status_code, thanks.headers["cache-control"]) == (200, "no-store")
        assert "code" not in thanks.text
        assert await page.answer() == "code=2&state=%C3%A9"


async def test_without_a_question_no_login_response_is_accepted() -> None:
    async with open_callback_page("http://127.0.0.1/back", 0) as page, httpx2.AsyncClient() as browser:
        assert (await browser.get(f"{page.redirect_uri}?code=1&state=")).status_code == 404


async def test_the_page_is_gone_after_the_login() -> None:
    async with open_callback_page("http://localhost/back", 0) as page:
        assert page.redirect_uri.startswith("http://localhost:")
    async with httpx2.AsyncClient() as browser:
        with pytest.raises(httpx2.ConnectError):
            await browser.get(page.redirect_uri)


async def test_closing_the_callback_page_does_not_hang_on_a_silent_connection() -> None:
    async with asyncio.timeout(PATIENCE), open_callback_page("http://127.0.0.1/back", 0) as page:
        port = int(page.redirect_uri.split(":")[2].split("/")[0])
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        silent.write(b"GET /")
        await silent.drain()
    silent.close()


async def test_a_port_in_use_is_reported() -> None:
    async with open_callback_page("http://127.0.0.1/back", 0) as page:
        with pytest.raises(CallError, match="is in use"):
            async with open_callback_page(page.redirect_uri, 0):
                pass


@pytest.mark.parametrize("uri", ["https://127.0.0.1/back", "http://example.org/back", "back"])
async def test_a_login_returns_only_to_this_machine(uri: str) -> None:
    with pytest.raises(CallError, match="address of this machine"):
        async with open_callback_page(uri, 0):
            pass
