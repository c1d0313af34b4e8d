"""A user's consent: the address that asks for it, and the answer that comes back, checked before it is believed. No I/O."""

from __future__ import annotations

import hashlib
from hmac import compare_digest
from secrets import token_urlsafe
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from enfold.sources.mcp.oauth.denial import denied
from enfold.sources.mcp.oauth.jwt import base64url
from enfold.sources.mcp.oauth.metadata import AuthorizationServer, TokenPlace

__all__ = ["ConsentQuestion", "ask", "read_answer"]


class ConsentQuestion(msgspec.Struct, frozen=True):
    """What an authorization request asked for, kept until the user's browser brings the answer."""

    url: str
    state: str
    verifier: str
    server: AuthorizationServer
    redirect_uri: str

    def __repr__(self) -> str:
        return f"ConsentQuestion({self.server.issuer!r})"


def ask(place: TokenPlace, client_id: str, redirect_uri: str, scopes: tuple[str, ...]) -> ConsentQuestion:
    """The address that a user is to be taken to."""
    if not place.can_prove_code:
        raise denied(f"{place.server.issuer} does not say that it protects its codes (PKCE with S256): it is not used")
    if not place.server.authorization_endpoint:
        raise denied(f"{place.server.issuer} has no page for a user to log in")
    state, verifier = token_urlsafe(32), token_urlsafe(48)
    fields = {
        "response_type": "code",
        "client_id": client_id,
        "redirect_uri": redirect_uri,
        "code_challenge": base64url(hashlib.sha256(verifier.encode()).digest()).decode(),
        "code_challenge_method": "S256",
        "state": state,
        "resource": place.resource,
    }
    if scopes:
        fields["scope"] = " ".join(scopes)
    if "offline_access" in scopes:
        fields["prompt"] = "consent"  # without it OpenID providers pass over that scope
    page = place.server.authorization_endpoint
    url = f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(fields)}"
    return ConsentQuestion(url, state, verifier, place.server, redirect_uri)


def read_answer(question: ConsentQuestion, query: str) -> str:
    """The code an answer brings; one that is not surely the answer to our question is not even quoted."""
    pairs = parse_qsl(query, keep_blank_values=True)
    answer = dict(pairs)
    if len(answer) < len(pairs):
        raise denied("The answer to the login says something twice: it was thrown away")
    if not compare_digest(answer.get("state", "").encode(), question.state.encode()):
        raise denied("The answer to the login does not belong to our question (state): it was thrown away")
    _check_issuer(question.server, answer.get("iss"))
    if "error" in answer:
        raise denied(f"{question.server.issuer} refuses: {answer.get('error_description') or answer['error']}")
    if not answer.get("code"):
        raise denied(f"{question.server.issuer} answered the login without a code")
    return answer["code"]


def _check_issuer(server: AuthorizationServer, issuer: str | None) -> None:
    """Who answered must be who was asked, to the letter; one that promised to say it must say it."""
    is_missing = issuer is None and server.authorization_response_iss_parameter_supported
    if is_missing or issuer not in (None, server.issuer):
        raise denied(
            "The answer to the login came from another authorization server than was asked: it was thrown away"
        )
