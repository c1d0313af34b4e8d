"""Challenges for unauthenticated clients: the errors, the `WWW-Authenticate` header and the metadata of RFC 9728."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from enfold.errors import CallError
from enfold.operations import OperationSpec

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def no_identity() -> CallError:
    """Return the error for a caller without a token."""
    return CallError("ACCESS_DENIED", "This server requires a bearer token", {"reason": "no_identity"})


def refused_token() -> CallError:
    return CallError("ACCESS_DENIED", "The token is not valid", {"reason": "invalid_token"})


def challenge(
    error: Literal["invalid_token"] | None = None, *, scope: Iterable[str] = (), resource_metadata: str = ""
) -> str:
    """Return the value of `WWW-Authenticate`: the error, the required scopes and the metadata URL."""
    fields = {
        "realm": "enfold",
        "error": error,
        "scope": " ".join(sorted(set(scope))),
        "resource_metadata": resource_metadata,
    }
    return "Bearer " + ", ".join(f'{name}="{_quoted(value)}"' for name, value in fields.items() if value)


def _quoted(text: str) -> str:
    """Escape text for a quoted string in a header."""
    return "".join(
        character for character in text if character.isascii() and character.isprintable() and character not in '"\\'
    )


def metadata_url(origin: str, path: str = "") -> str:
    """Return the well-known metadata path of the resource at a path."""
    return f"{origin}{WELL_KNOWN}{path.rstrip('/')}"


def protected_resource(
    resource: str, *, name: str, issuers: Iterable[str] = (), scopes: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the metadata of a protected resource: its authorization servers and scopes (RFC 9728)."""
    document: dict[str, Any] = {"resource": resource}
    if servers := list(dict.fromkeys(issuers)):
        document["authorization_servers"] = servers
    if known := sorted(set(scopes)):
        document["scopes_supported"] = known
    return {**document, "bearer_methods_supported": ["header"], "resource_name": name}


def scopes_of(specs: Iterable[OperationSpec]) -> list[str]:
    """Return the scopes that operations require."""
    rules = [spec.access_control for spec in specs]
    return sorted({scope for rule in rules for scope in (*rule.required_scopes, *rule.required_scopes_any)})
