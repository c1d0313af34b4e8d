"""Bearer tokens and their identities: the only place where tokens are verified. Only hashes are stored."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from itertools import pairwise
from typing import Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from enfold.auth.challenges import refused_token
from enfold.errors import CallError
from enfold.observability.log import Log
from enfold.operations import RESERVED_IDS, Identity
from enfold.operations.access import grants_all_of

VARIABLE: Final = "ENFOLD_TOKENS"

Client: TypeAlias = str | tuple[str, int] | None  # an address, alone or with its port

_log: Final = Log("enfold.auth")


class Verifier(Protocol):
    """Verifies tokens, such as `Tokens`."""

    def identify(self, token: str) -> Identity | Awaitable[Identity | None] | None:
        """Return the identity of a token, or None; may be an `async def`."""


@runtime_checkable
class _KnowsIdentities(Protocol):
    """A verifier that can look up identities by id."""

    def known(self, identity_id: str) -> Identity | None: ...


def issuers_of(verifier: object) -> Sequence[IdSpace]:
    """Return the issuers of a verifier; empty for a list of tokens."""
    return getattr(verifier, "issuers", ())


async def verified(tokens: Verifier, token: str) -> Identity | None:
    """Ask a verifier for the identity of a token; any exception is a rejection."""
    try:
        found = tokens.identify(token)
        return found if found is None or isinstance(found, Identity) else await found
    except Exception as error:  # noqa: BLE001  # a verifier of the user's own may fail in any way, and must not let in
        Log("enfold.auth.tokens").warning("A token was refused, because its verifier failed: %s", type(error).__name__)
        return None


class Authenticator:
    """Verifies the `Authorization` headers of callers, and delays rejections after repeated failures."""

    def __init__(self, verifier: Verifier) -> None:
        if not callable(getattr(verifier, "identify", None)):
            kind = type(verifier).__name__
            raise TypeError(
                f'A {kind} cannot verify tokens: pass Tokens({{"secret": Identity("ann")}}), or an object with identify(token)'
            )
        self.verifier = verifier
        self._attempts = Attempts()
        self._waiting = 0  # rejections being delayed

    @property
    def issuers(self) -> list[str]:
        """The URLs of the issuers."""
        return [each.issuer for each in issuers_of(self.verifier)]

    async def authenticate(self, authorization: str, client: Client, gone: Callable[[], Awaitable[object]]) -> Identity:
        """Return the identity of an `Authorization` header; reject it otherwise, after an increasing delay.

        `gone` returns when the client has disconnected, which ends the delay; it may discard the request body.
        """
        token = bearer_token(authorization)
        identity = None if token is None else await verified(self.verifier, token)
        if identity is not None:
            return identity
        refusal = refused_token() if token is not None else _refused_scheme(authorization)
        del authorization, token  # a delayed rejection must not hold the token in memory
        address = address_of(client)
        _log.warning("A token from %s was refused", address or "an unknown address")
        await self._delay(self._attempts.failed(address), gone)
        raise refusal

    async def _delay(self, seconds: float, gone: Callable[[], Awaitable[object]]) -> None:
        if not seconds or self._waiting >= MAX_WAITING:
            return
        from asyncio import wait_for  # loaded by then; the commands start faster without it

        self._waiting += 1
        try:
            await wait_for(gone(), seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1


class AnyOf:
    """Combines verifiers, which are tried in order. Raises ValueError if two could produce the same id."""

    def __init__(self, verifiers: Iterable[Verifier]) -> None:
        self._verifiers = tuple(verifiers)
        self.issuers: list[IdSpace] = [each for verifier in self._verifiers for each in issuers_of(verifier)]
        others = [each for each in self._verifiers if not issuers_of(each)]
        has_ids = any(not (isinstance(each, Tokens) and each.are_reserved) for each in others)
        check_apart(self.issuers, beside_others=bool(others), beside_lists=has_ids)

    async def identify(self, token: str) -> Identity | None:
        for verifier in self._verifiers:
            identity = await verified(verifier, token)
            if identity is not None:
                return identity if issuers_of(verifier) else self._checked(identity)
        return None

    def _checked(self, identity: Identity) -> Identity | None:
        """Return an identity of a token list; None for an id reserved for an issuer."""
        prefix = belongs_to_another(identity.id, None, self.issuers)
        if prefix is None:
            return identity
        _log.warning("The token of %s was refused: ids that begin with %r are an issuer's", identity.id, prefix)
        return None

    def current(self, identity: Identity) -> Identity | None:
        """Return the identity with its current permissions; None for identities of an issuer, which have no lookup.

        Raises ACCESS_DENIED if it no longer has a token.
        """
        if belongs_to_another(identity.id, None, self.issuers) is not None:
            return None
        lists = [each for each in self._verifiers if isinstance(each, _KnowsIdentities)]
        known = [found for each in lists if (found := each.known(identity.id)) is not None]
        if known:
            return _merged(known)
        if not any(map(_may_know, self._verifiers)):
            raise CallError("ACCESS_DENIED", f"{identity.id} no longer has a token", {"reason": "invalid_token"})
        return None

    def __len__(self) -> int:
        """Return the number of identities with lookup, which excludes those of issuers."""
        return sum(len(each) for each in self._verifiers if isinstance(each, Sized))

    def __bool__(self) -> bool:
        """Whether any caller can authenticate."""
        return len(self) > 0 or any(not isinstance(each, Sized) for each in self._verifiers)


def address_of(client: Client) -> str:
    """Return the address of a client without its port."""
    return client if isinstance(client, str) else str(client[0]) if client else ""


def _refused_scheme(authorization: str) -> CallError:
    """Return the error for an `Authorization` header without a bearer token; an unknown scheme may be a token and is not shown."""
    scheme = authorization.strip().partition(" ")[0].lower()
    wrong = f"{scheme.title()} authentication is not supported" if scheme in _OTHER_SCHEMES else "No bearer token"
    return CallError("ACCESS_DENIED", f"{wrong}. Send Authorization: Bearer TOKEN.", {"reason": "invalid_token"})


_OTHER_SCHEMES: Final = frozenset({"basic", "digest", "negotiate", "ntlm", "hawk", "dpop"})


class Tokens:
    """Tokens by hash, with their identities."""

    def __init__(self, identities: Mapping[str, Identity] | Iterable[tuple[str, Identity]]) -> None:
        """Takes identities by `hash_token(token)` or by the token itself, which is hashed and not stored."""
        pairs = identities.items() if isinstance(identities, Mapping) else identities
        self._identities = {digest_of(text): identity for text, identity in pairs}
        for identity in self._identities.values():
            if not isinstance(identity, Identity):
                raise TypeError(f'Tokens needs an Identity for each token, not {identity!r}: write Identity("ann")')

    def identify(self, token: str) -> Identity | None:
        """Return the identity of a token, without leaking other tokens through timing."""
        # The dict lookup uses a keyed hash of the digest, whose timing an attacker cannot control; it could reveal at most
        # parts of the digest, which do not lead to a token.
        return self._identities.get(sha256(token.encode("utf-8", "surrogatepass")).digest())

    def known(self, identity_id: str) -> Identity | None:
        """Return the combined permissions of all tokens of an identity; None if it has none."""
        found = [identity for identity in self._identities.values() if identity.id == identity_id]
        return _merged(found) if found else None

    @property
    def are_reserved(self) -> bool:
        """Whether all ids are reserved ones, which no other source can produce."""
        return all(identity.id in RESERVED_IDS for identity in self._identities.values())

    def __len__(self) -> int:
        return len(self._identities)

    def __repr__(self) -> str:
        return f"<Tokens of {len(self)} identities>"


def _may_know(verifier: Verifier) -> bool:
    """Whether an id without a prefix may belong to a verifier without lookup."""
    issuers = issuers_of(verifier)
    return any(not each.prefix for each in issuers) if issuers else not isinstance(verifier, _KnowsIdentities)


def _merged(identities: list[Identity]) -> Identity:
    resources: dict[str, list[str]] = {}
    for each in identities:
        for name, actions in (each.resources or {}).items():
            resources.setdefault(name, []).extend(actions)
    scopes = frozenset[str]().union(*(each.scopes for each in identities))
    return Identity(identities[0].id, scopes, resources or None)


def new_token() -> str:
    """Return a token with 256 random bits, for which a plain hash is sufficient protection."""
    from secrets import token_urlsafe  # slow to import, needed only to create tokens

    return f"enfold_{token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """Return the hash that is stored instead of a token."""
    return f"{_HASHED}{sha256(token.encode()).hexdigest()}"


def bearer_token(authorization: str) -> str | None:
    """Return the token of an `Authorization` header; None for another scheme."""
    scheme, _, token = authorization.strip().partition(" ")
    if scheme != "Bearer" and scheme.lower() != "bearer":
        return None
    return token.strip() or None


def wrong_shape(where: str, error: msgspec.DecodeError) -> str:
    """Return the message for a malformed list of tokens, without any part of a token."""
    return (
        f"{where}: {error}. A list of tokens is what `enfold token new --id ann --file tokens.json` writes: "
        '[{"id": "ann", "token": "sha256:…", "scopes": []}]'
    )


def tokens_from_environment(environ: Mapping[str, str]) -> Tokens | None:
    """Read tokens, possibly in plain text, from an environment variable in the format of a token file."""
    text = environ.get(VARIABLE)
    if not text:
        return None
    try:
        return Tokens([(entry.token, entry.identity) for entry in msgspec.json.decode(text, type=list[TokenEntry])])
    except msgspec.DecodeError as error:
        raise ValueError(wrong_shape(VARIABLE, error)) from None  # without the context, which may show a token
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


_HASHED: Final = "sha256:"
_HEX_DIGITS: Final = re.compile("[0-9a-fA-F]{64}")


def digest_of(text: str) -> bytes:
    """Return the digest of a token, or of its hash; raise ValueError for a malformed hash."""
    if not text.startswith(_HASHED):
        return sha256(text.encode()).digest()
    digits = text.removeprefix(_HASHED)
    if not _HEX_DIGITS.fullmatch(digits):
        raise ValueError("A token's hash must be `sha256:` and 64 hexadecimal digits")
    return bytes.fromhex(digits)


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of a list of tokens: owner, token or hash, and permissions."""

    id: str
    token: str
    scopes: list[str] = []
    resources: dict[str, list[str]] | None = None

    def __post_init__(self) -> None:
        if self.id in RESERVED_IDS:
            raise ValueError(f"the id {self.id!r} is reserved for this server: choose another")

    @property
    def identity(self) -> Identity:
        return Identity(self.id, frozenset(self.scopes), self.resources)


class IdSpace(Protocol):
    """An issuer and the prefix of its callers' ids; None if not configured."""

    @property
    def issuer(self) -> str: ...

    @property
    def prefix(self) -> str | None: ...


def check_prefix(issuer: IdSpace) -> None:
    """Reject a prefix without a delimiter."""
    if issuer.prefix and (issuer.prefix[-1].isalnum() or not issuer.prefix.isprintable()):
        raise ValueError(f"The prefix {issuer.prefix!r} of {issuer.issuer} must end with a delimiter, as in 'partner:'")


def check_apart(issuers: Sequence[IdSpace], *, beside_others: bool = False, beside_lists: bool = False) -> None:
    """Reject issuers that could give two callers the same id.

    `beside_others`: there are other sources of tokens; `beside_lists`: those have their own ids.
    """
    if len(issuers) + beside_others < 2:
        return
    for issuer in issuers:
        if sum(each.issuer == issuer.issuer for each in issuers) > 1:
            raise ValueError(f"The issuer {issuer.issuer} is listed twice: give one table all its audiences")
        if issuer.prefix is None:
            raise ValueError(
                f"The ids of {issuer.issuer} could be those of other callers: set its prefix, as in "
                'prefix = "partner:" in its table of auth, or --issuer-prefix partner:'
            )
    empty = [issuer.issuer for issuer in issuers if not issuer.prefix]
    if len(empty) + beside_lists > 1:
        other = (
            "the ids of the token list have no prefix either"
            if beside_lists
            else f"those of {empty[0]} have none either"
        )
        raise ValueError(f"The ids of {empty[-1]} need a prefix, because {other}")
    named = sorted((issuer.prefix, issuer.issuer) for issuer in issuers if issuer.prefix)
    for (prefix, issuer_url), (longer, other_url) in pairwise(named):
        if longer.startswith(prefix):
            raise ValueError(f"The prefixes {prefix!r} of {issuer_url} and {longer!r} of {other_url} overlap")


def belongs_to_another(identity_id: str, own: str | None, issuers: Iterable[IdSpace]) -> str | None:
    """Return the prefix of another issuer that an id begins with; `own` is the prefix of its source."""
    others = (each.prefix for each in issuers if each.prefix and each.prefix != own)
    return next((prefix for prefix in others if identity_id.startswith(prefix)), None)


FREE: Final = 5  # failures without a delay
STEP: Final = 0.2  # seconds of the first delay, doubled for each further failure
MAX_DELAY: Final = 10.0
FORGOTTEN: Final = 300.0  # seconds without a failure until the count is reset
MAX_ADDRESSES: Final = 10_000
MAX_WAITING: Final = 500  # delayed rejections at a time; more are sent immediately


class _Address(msgspec.Struct):
    failures: int = 0
    last: float = 0.0
    free_at: float = 0.0  # when the last delayed rejection is sent


class Attempts:
    """The recent failed attempts of a limited number of addresses."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_addresses: int = MAX_ADDRESSES) -> None:
        self._clock = clock
        self._max_addresses = max_addresses
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def failed(self, address: str) -> float:
        """Count a failed attempt; return the delay of its rejection in seconds.

        Rejections to one address are sent one after the other, so that parallel attempts are no faster.
        """
        now = self._clock()
        known = self._known(_network_of(address), now)
        known.failures += 1
        known.last = now
        if known.failures <= FREE:
            return 0.0
        step = min(STEP * 2 ** min(known.failures - FREE - 1, 16), MAX_DELAY)
        known.free_at = min(max(known.free_at, now) + step, now + MAX_DELAY)
        return known.free_at - now

    def _known(self, network: str, now: float) -> _Address:
        found = self._addresses.pop(network, None)
        if found is None or now - found.last > FORGOTTEN:
            found = _Address()
        self._addresses[network] = found
        if len(self._addresses) > self._max_addresses:
            self._addresses.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._addresses)


def _network_of(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address, since one customer has many addresses."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))


# --- open streams ----------------------------------------------------------------------------------------------------


RECHECK_INTERVAL: Final = 5.0  # seconds between two checks of the token of an open stream

Refuse: TypeAlias = Callable[[], Awaitable[object] | None]


@contextmanager
def while_admitted(
    verifier: Verifier | None,
    token: str | None,
    identity: Identity | None,
    refuse: Refuse,
    every: float | None = None,
) -> Iterator[None]:
    """Recheck the token of an open stream periodically; `refuse` is called once it is revoked, expired or grants less.

    A plain call that is already running is not interrupted.
    """
    if verifier is None or token is None or identity is None:
        yield
        return
    import asyncio  # CGI and the commands start without it

    checking = asyncio.ensure_future(_recheck(verifier, token, identity, refuse, every or RECHECK_INTERVAL))
    try:
        yield
    finally:
        checking.cancel()


async def _recheck(verifier: Verifier, token: str, identity: Identity, refuse: Refuse, every: float) -> None:
    from asyncio import sleep  # as above

    while True:
        await sleep(every)
        now = await verified(verifier, token)
        if now is None or now.id != identity.id or not grants_all_of(now, identity):
            going = refuse()
            if going is not None:
                await going
            return


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
