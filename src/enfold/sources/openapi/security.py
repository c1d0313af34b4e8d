"""Security schemes: which credentials a request carries and where, and tokens by the client credentials flow."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin

import msgspec

from enfold.auth.token_endpoint import GrantRefusedError, Method, TokenAnswer, identify, post_form
from enfold.errors import CallError, nearest
from enfold.http_client.errors import WebError
from enfold.sources.openapi.client import ServiceClient
from enfold.sources.openapi.document import BrokenReferenceError, DocumentPlace, Library
from enfold.sources.openapi.operations import FoundOperation
from enfold.sources.openapi.parameters import encode
from enfold.sources.openapi.requests import Draft
from enfold.sources.reports import Problem, SchemeNeed
from enfold.sources.secrets import KnownSecrets, current

Credential: TypeAlias = str | tuple[str, str] | list[str] | Mapping[str, str] | Callable[[], Any]
Scopes: TypeAlias = tuple[str, ...]
Requirements: TypeAlias = tuple[Mapping[str, Scopes], ...] | None
ParameterKey: TypeAlias = tuple[str, str]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_A_NAME: Final = re.compile(r"[^A-Za-z0-9]+")


class Scheme(msgspec.Struct, frozen=True):
    """A security scheme of the document: where in a request its credential stands, and what is written before it."""

    kind: str  # header, query, cookie, basic, bearer, oauth2, other
    location: str = "header"
    parameter: str = "Authorization"
    prefix: str = ""
    token_url: str = ""

    @property
    def key(self) -> ParameterKey:
        """The location and the name of its credential, a header's in lower case."""
        return self.location, self.parameter.lower() if self.location == "header" else self.parameter


# --- reading ------------------------------------------------------------------------------------------------------


def read_schemes(library: Library, problems: list[Problem]) -> dict[str, Scheme]:
    """Read the security schemes of a document; unsupported ones are problems."""
    root = library.place()
    listed = (
        root.child("securityDefinitions") if library.version == "2.0" else root.child("components", "securitySchemes")
    )
    schemes: dict[str, Scheme] = {}
    for name, place in listed.items():
        try:
            scheme = _read(library.follow(place))
        except BrokenReferenceError as error:
            problems.append(Problem(place.where, str(error)))
            continue
        if scheme is None:
            problems.append(Problem(place.where, f"the security scheme {name} is of a kind that is not supported"))
        else:
            schemes[name] = scheme
    return schemes


def _read(place: DocumentPlace) -> Scheme | None:
    node = place.fields
    kind = str(node.get("type", "")).lower()
    if kind == "apikey" and node.get("in") in ("header", "query", "cookie") and isinstance(node.get("name"), str):
        return Scheme(node["in"], node["in"], node["name"])
    if kind == "basic":  # 2.0
        return Scheme("basic", prefix="Basic ")
    if kind == "http":
        return _read_http(str(node.get("scheme", "")))
    if kind == "oauth2":
        return Scheme("oauth2", prefix="Bearer ", token_url=_token_url(place))
    return Scheme("bearer", prefix="Bearer ") if kind == "openidconnect" else None


def _read_http(declared: str) -> Scheme | None:
    known = declared.lower()
    if known in ("basic", "bearer"):
        return Scheme(known, prefix=f"{known.title()} ")
    if known in ("", "digest", "mutual", "hoba", "negotiate"):  # these answer a challenge; no fixed text does
        return None
    return Scheme("other", prefix=f"{declared} ")


def _token_url(place: DocumentPlace) -> str:
    old = place.text("tokenUrl") if place.node.get("flow") == "application" else ""
    return place.child("flows", "clientCredentials").text("tokenUrl") or old


def read_requirements(library: Library, found: FoundOperation) -> Requirements:
    """Read an operation's alternatives: schemes that are needed together, with their scopes; None if undeclared."""
    for owner in (found.place, library.place()):
        declared = owner.node.get("security")
        if isinstance(declared, list):
            return tuple(
                {name: _scopes(listed) for name, listed in each.items()} for each in declared if isinstance(each, dict)
            )
    return None


def _scopes(listed: Any) -> Scopes:
    """Sort the scopes, so that operations with the same ones share a token."""
    return tuple(sorted({each for each in listed if isinstance(each, str)})) if isinstance(listed, list) else ()


# --- credentials --------------------------------------------------------------------------------------------------


def unknown_credentials(given: Mapping[str, Credential] | None, schemes: Iterable[str]) -> Iterator[Problem]:
    """Return a problem for each credential whose scheme the document does not have, with the likely name."""
    known = list(schemes)
    for name in given or ():
        if name not in known:
            near = nearest(name, known, 0.5)
            others = f"did you mean {near}?" if near else f"it has {', '.join(known) or 'none'}"
            yield Problem("credentials", f"the document has no security scheme {name}: {others}")


def gather_credentials(
    given: Mapping[str, Credential] | None, schemes: Iterable[str], namespace: str, environment: Mapping[str, str]
) -> dict[str, Credential]:
    """Collect the credentials by scheme: the given ones with `${NAME}` filled in, else those of the environment."""
    found: dict[str, Credential] = {}
    for name in schemes:
        credential = _filled((given or {}).get(name), environment)
        if credential is None:
            credential = _from_environment(name, namespace, environment)
        if credential is not None:
            found[name] = credential
    return found


def document_credentials(
    given: Mapping[str, Credential] | None, environment: Mapping[str, str]
) -> tuple[Credential, ...]:
    """Return all given credentials: their schemes are unknown before the document is read."""
    filled = (_filled(each, environment) for each in (given or {}).values())
    return tuple(each for each in filled if each is not None)


def environment_name(scheme: str, namespace: str) -> str:
    """Return the variable of a scheme's credential: `ENFOLD_GITHUB_TOKEN` for the scheme `token` in `github`."""
    words = ("enfold", namespace, scheme)
    return "_".join(_NOT_A_NAME.sub("_", word).strip("_") for word in words if word).upper()


def _filled(credential: Credential | None, environment: Mapping[str, str]) -> Credential | None:
    if isinstance(credential, str):
        return _text(credential, environment)
    if isinstance(credential, Mapping):
        return {key: _text(value, environment) for key, value in credential.items()}
    if isinstance(credential, (tuple, list)):
        return _pair([_text(each, environment) for each in credential])
    return credential


def _pair(texts: Sequence[str]) -> tuple[str, str]:
    if len(texts) != 2:
        raise ValueError(f"A credential with several values must be a user and a password, not {len(texts)} strings")
    return texts[0], texts[1]


def _text(text: str, environment: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ValueError(f"The credential needs the environment variable {match[1]}, which is not set")
        return environment[match[1]]

    return _VARIABLE.sub(value, text)


def _from_environment(scheme: str, namespace: str, environment: Mapping[str, str]) -> Credential | None:
    name = environment_name(scheme, namespace)
    if environment.get(name):
        return environment[name]
    parts = {part: environment.get(f"{name}_{part.upper()}") for part in _PARTS}
    return {part: value for part, value in parts.items() if value} or None


_PARTS: Final = ("username", "password", "client_id", "client_secret", "scopes", "token_url")


def presented(credential: Any, *, may_be_pair: bool) -> str | tuple[str, str]:
    """Return a credential as text, or as user and password; `may_be_pair` reads `user:password` as a pair."""
    if isinstance(credential, Mapping):
        if "username" in credential or "password" in credential:
            credential = credential.get("username", ""), credential.get("password", "")
        else:
            credential = credential.get("token") or credential.get("value") or credential.get("access_token")
    if isinstance(credential, (tuple, list)):
        return _pair(credential)
    text = credential if isinstance(credential, str) else ""
    user, colon, password = text.partition(":")
    return (user, password) if may_be_pair and colon else text


# --- applying -----------------------------------------------------------------------------------------------------


class Security(msgspec.Struct, eq=False):
    """The credentials of a source, laid on requests as their operations require."""

    schemes: Mapping[str, Scheme]
    credentials: Mapping[str, Credential]
    tokens: TokenStore
    secrets: KnownSecrets
    namespace: str
    assumed: dict[str, Scopes] = {}  # sent where an operation says nothing of credentials

    def assume_if_unsaid(self, declared: Collection[Requirements]) -> list[Problem]:
        """Send every credential with every call where no operation asks for one, and some say nothing of it."""
        if None not in declared or any(names for requirements in declared for names in requirements or ()):
            return []
        by_key = {self.schemes[name].key: name for name in reversed(list(self.credentials))}
        self.assumed = {name: () for name in self.credentials if name in by_key.values()}
        sent = [f"the document requires no credentials: that of {name} is sent anyway" for name in self.assumed]
        return [Problem("security", each) for each in sent]

    def choose(self, requirements: Requirements, declared: Collection[ParameterKey] = ()) -> Mapping[str, Scopes]:
        """Return the first alternative with all credentials, and other schemes that fill a declared parameter."""
        if requirements is None:
            return self.assumed
        chosen = next((each for each in requirements if each and self.credentials.keys() >= each.keys()), {})
        supplied = self.supplied(chosen)
        others = {name: scopes for each in requirements for name, scopes in each.items() if name in self.credentials}
        filling = {self.schemes[name].key: name for name in sorted(others, reverse=True)}
        added = [name for place, name in filling.items() if place in declared and place not in supplied]
        return {**chosen, **{name: others[name] for name in added}}

    def supplied(self, names: Iterable[str]) -> set[ParameterKey]:
        """Return the parameters that the chosen schemes fill in."""
        return {self.schemes[name].key for name in names}

    def needs(self) -> list[SchemeNeed]:
        """Return each scheme of the document, with the variable that would fill it."""
        return [
            SchemeNeed(name, scheme.kind, environment_name(name, self.namespace), name in self.credentials)
            for name, scheme in self.schemes.items()
        ]

    def refused(self, requirements: Requirements, sent: Collection[str]) -> tuple[str, dict[str, Any]]:
        """Return advice after a 401, as a sentence and as details; empty if the document has no schemes."""
        if sent:
            return f"the credential of {' and '.join(sent)} was refused", {"schemes": list(sent)}
        wanted: Iterable[Iterable[str]] = requirements or [[name] for name in self.schemes]
        lacking = [name for names in wanted for name in names if name not in self.credentials]
        variables = {name: environment_name(name, self.namespace) for name in lacking}
        if not variables:
            return "", {}
        first, variable = next(iter(variables.items()))
        return (
            f"no credential for {' or '.join(variables)}: set {variable} or pass credentials={{{first!r}: …}}",
            {"schemes": list(variables), "variables": list(variables.values())},
        )

    async def add_to(self, request: Draft, chosen: Mapping[str, Scopes]) -> None:
        """Lay the credentials of the chosen schemes on a request; no argument of a caller takes their place."""
        for name, scopes in chosen.items():
            scheme = self.schemes[name]
            value = await self._value(scheme, self.credentials[name], scopes)
            self.secrets.remember(value, f"credentials.{name}")
            if scheme.location == "query":
                request.query.append(f"{encode(scheme.parameter)}={encode(value)}")
            elif scheme.location == "cookie":
                request.cookies.append(f"{scheme.parameter}={value}")
            else:
                request.set_header(scheme.parameter, f"{scheme.prefix}{value}")

    async def _value(self, scheme: Scheme, credential: Credential, scopes: Scopes) -> str:
        given = await current(credential)
        if isinstance(given, Mapping) and "client_id" in given:
            return await self.tokens.token(_grant(scheme, given, scopes))
        value = presented(given, may_be_pair=scheme.kind == "basic")
        if isinstance(value, str):
            return value
        self.secrets.remember(value[1])
        return b64encode(":".join(value).encode()).decode()


def _grant(scheme: Scheme, parts: Mapping[str, str], needed: Scopes) -> CredentialsFlow:
    """Return the token request: the scopes that the user gave, else those that the operation needs."""
    scopes = parts.get("scopes") or parts.get("scope") or " ".join(needed)
    own = parts.get("token_url")
    url = own or scheme.token_url
    return CredentialsFlow(url, parts["client_id"], parts.get("client_secret", ""), scopes, is_trusted=own is not None)


MARGIN: Final = 30.0  # a token this near to its end is as good as ended
_UNKNOWN_LIFE: Final = 300.0


class CredentialsFlow(msgspec.Struct, frozen=True):
    """What the OAuth2 client credentials flow needs; `is_trusted` says that the user named the token address, and not the document."""

    token_url: str
    client_id: str
    client_secret: str
    scopes: str = ""
    is_trusted: bool = False


class TokenStore:
    """The tokens of one source; token addresses are relative to `base`."""

    def __init__(self, client: ServiceClient, base: str) -> None:
        self._client = client
        self._base = base
        self._tokens: dict[CredentialsFlow, tuple[str, float]] = {}
        self._locks: dict[CredentialsFlow, asyncio.Lock] = {}

    async def token(self, grant: CredentialsFlow) -> str:
        """Return a valid token; concurrent callers fetch it only once."""
        async with self._locks.setdefault(grant, asyncio.Lock()):
            token, until = self._tokens.get(grant, ("", 0.0))
            if time.monotonic() >= until:
                answer = await self._fetch(grant)
                life = (answer.seconds or _UNKNOWN_LIFE) - MARGIN
                token, until = answer.access_token, time.monotonic() + max(1.0, life)
                self._tokens[grant] = token, until
            return token

    def forget(self) -> bool:
        """Drop all tokens, as after a 401; returns whether there were any."""
        had_any = bool(self._tokens)
        self._tokens.clear()
        return had_any

    async def _fetch(self, grant: CredentialsFlow) -> TokenAnswer:
        url = urljoin(f"{self._base}/", grant.token_url)
        refusal = None if grant.is_trusted else self._client.reach.refusal(url)
        if refusal is not None or not grant.token_url:
            raise CallError("EXECUTION_ERROR", f"Cannot fetch a token: {refusal or 'the token URL is unknown'}")
        try:
            try:
                return await self._ask(url, grant, "client_secret_basic")
            except GrantRefusedError as refused:
                if not refused.may_be_unseen:
                    raise
            return await self._ask(url, grant, "client_secret_post")
        except GrantRefusedError as refused:
            details = {"status": refused.status, "reason": "token"}
            raise CallError("EXECUTION_ERROR", f"Cannot fetch a token: {refused}", details) from None
        except WebError as error:
            code = "UNAVAILABLE" if error.kind in ("unreachable", "broken", "late") else "EXECUTION_ERROR"
            raise CallError(code, f"Cannot fetch a token: {error.sentence}", {"reason": "token"}) from None

    async def _ask(self, url: str, grant: CredentialsFlow, method: Method) -> TokenAnswer:
        form = {"grant_type": "client_credentials", **({"scope": grant.scopes} if grant.scopes else {})}
        fields, headers = identify(grant.client_id, grant.client_secret, method)
        return await post_form(self._client.send, url, {**form, **fields}, headers, grant.client_secret)
