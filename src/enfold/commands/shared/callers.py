"""The callers of a server, from options, variables and a configuration; and the caller on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from enfold.commands.shared.targets import TOKEN, config_of
from enfold.errors import CallError
from enfold.operations import Identity
from enfold.operations.access import EVERYTHING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.auth.token_file import TokenFile
    from enfold.auth.tokens import AnyOf, Verifier

OWNER_TOKEN: Final = "ENFOLD_SERVE_TOKEN"  # noqa: S105  # the name of a variable
LOCAL: Final = Identity("local", frozenset({EVERYTHING}))


def local_caller(tokens: str | None) -> Identity:
    """Return the identity of calls from the shell or over stdio; with a token file, that of `ENFOLD_TOKEN`."""
    if tokens is None:
        return LOCAL
    identity = token_file(tokens).identify(os.environ.get(TOKEN, ""))
    if identity is None:
        raise CallError("ACCESS_DENIED", f"The token in {TOKEN} is not in {tokens}")
    return identity


def add_caller_options(parser: ArgumentParser) -> None:
    parser.add_argument("--tokens", metavar="FILE", help="token file (default: the list in ENFOLD_TOKENS)")
    parser.add_argument("--issuer", metavar="URL", help="accept JWTs of this issuer; needs --audience")
    parser.add_argument("--issuer-prefix", metavar="TEXT", help="prefix for the ids of its callers, such as partner:")
    parser.add_argument(
        "--audience", action="append", default=[], metavar="NAME", help="required audience of its tokens"
    )


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Report an error in the settings of callers as one sentence."""
    try:
        yield
    except ValueError as error:
        raise CallError("VALIDATION_ERROR", str(error)) from None


@_one_sentence()
def token_verifier(options: Namespace) -> AnyOf | None:
    """Combine the tokens of file and variable, the owner's, and those of issuers; None without authentication."""
    from enfold.auth.tokens import AnyOf

    found = find_verifiers(options)
    return AnyOf(found) if found else None


def current_rights(tokens: AnyOf | None) -> Callable[[Identity], Identity | None] | None:
    """Return a function that returns an identity with its current rights, for tasks."""
    if tokens is None:
        return None
    return lambda identity: None if identity == LOCAL else tokens.current(identity)


@_one_sentence()
def find_verifiers(options: Namespace) -> list[Verifier]:
    """Return all verifiers: files, lists, issuers."""
    from enfold.auth.tokens import Tokens, tokens_from_environment

    listed = tokens_from_environment(os.environ) if options.tokens is None else token_file(options.tokens)
    found: list[Verifier] = [] if listed is None else [listed]
    own = options.token or os.environ.get(OWNER_TOKEN)
    if own:
        found.append(Tokens([(own, Identity("owner", frozenset({EVERYTHING})))]))
    config = config_of(options.target)
    trusted = () if config is None else config.issuers
    if options.issuer or trusted:
        from enfold.auth.issuers import Issuers, read_issuers

        if options.issuer:
            prefix = {} if options.issuer_prefix is None else {"prefix": options.issuer_prefix}
            table = {"issuer": options.issuer, "audiences": options.audience, **prefix}
            trusted = (*trusted, *read_issuers(table))
        found.append(Issuers(trusted))
    return found


@_one_sentence()
def token_file(path: str) -> TokenFile:
    """Read the tokens of a file."""
    from enfold.auth.token_file import TokenFile

    try:
        return TokenFile(path)
    except OSError as error:
        raise ValueError(f"Cannot read the tokens from {path}: {error.strerror}") from None
