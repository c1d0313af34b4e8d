"""Who may come in, as options, variables and a configuration say; and who calls from this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from enfold.access import EVERYTHING
from enfold.commands.targets import TOKEN, Target
from enfold.errors import CallError
from enfold.operation import Identity

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.identities.tokens import AnyOf, Verifier

__all__ = ["LOCAL", "add_caller_options", "find_verifiers", "local_caller", "who_may_come_in"]

OWNER_TOKEN: Final = "ENFOLD_SERVE_TOKEN"  # noqa: S105  # the name of a variable
LOCAL: Final = Identity("local", frozenset({EVERYTHING}))


def local_caller(tokens: str | None) -> Identity:
    """Who calls from the shell or over stdio; with a file of tokens, whoever `ENFOLD_TOKEN` stands for."""
    if tokens is None:
        return LOCAL
    from enfold.identities.token_file import TokenFile

    try:
        identity = TokenFile(tokens).identify(os.environ.get(TOKEN, ""))
    except (OSError, ValueError) as error:
        raise _unreadable(tokens, error) from None
    if identity is None:
        raise CallError("ACCESS_DENIED", f"{tokens} has no such token: set {TOKEN} to one that it lists")
    return identity


def add_caller_options(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", metavar="FILE", help="bearer tokens and identities; else ENFOLD_TOKENS, if set")
    parser.add_argument("--issuer", metavar="URL", help="take the tokens of this issuer, meant for --audience")
    parser.add_argument("--audience", action="append", default=[], metavar="NAME", help="whom its tokens are meant for")


def who_may_come_in(options: Namespace) -> AnyOf | None:
    """The tokens of the file or the variable, the owner's, and those of issuers; None where everybody may come in."""
    from enfold.identities.tokens import AnyOf

    found = list(find_verifiers(options))
    return AnyOf(found) if found else None


def find_verifiers(options: Namespace) -> Iterator[Verifier]:
    """Everybody who can say who is behind a token; a file, a list or an issuer that is wrong is one sentence."""
    try:
        yield from _verifiers(options)
    except (OSError, ValueError) as error:
        raise _unreadable(options.tokens, error) from None


def _verifiers(options: Namespace) -> Iterator[Verifier]:
    from enfold.identities.token_file import TokenFile
    from enfold.identities.tokens import Tokens, tokens_from_environment

    listed = tokens_from_environment(os.environ) if options.tokens is None else TokenFile(options.tokens)
    if listed is not None:
        yield listed
    own = options.token or os.environ.get(OWNER_TOKEN)
    if own:
        yield Tokens([(own, Identity("owner", frozenset({EVERYTHING})))])
    trusted = [*_configured(options.target), *_named(options)]
    if trusted:
        from enfold.issuers import Issuers, read_issuers

        yield Issuers(read_issuers(trusted))


def _configured(target: Target | None) -> list[Mapping[str, Any]]:
    """The issuers of a configuration."""
    if target is None or target.kind != "configuration":
        return []
    from enfold.config import read_config

    return list(read_config(target.text, os.environ).issuers)


def _named(options: Namespace) -> list[Mapping[str, Any]]:
    return [{"issuer": options.issuer, "audiences": options.audience}] if options.issuer else []


def _unreadable(tokens: str | None, error: OSError | ValueError) -> CallError:
    sentence = (
        f"The tokens cannot be read from {tokens}: {error.strerror}" if isinstance(error, OSError) else str(error)
    )
    return CallError("VALIDATION_ERROR", sentence)
