"""A call of several rounds: between them its state is kept by the client, signed and bound to this call."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import msgspec

from enfold.mcp.json_rpc import INVALID_PARAMS, ProtocolError
from enfold.mcp.signed_state import StateSigner
from enfold.operation.asking import InputRequired
from enfold.surfaces.mcp.client_exchange import ClientExchange

LIFETIME: Final = 3600.0  # seconds in which a user may answer
MAX_STATE: Final = 1_000_000


class RequestState(msgspec.Struct, frozen=True):
    """The answers a client has given so far, what the handler remembers, and the request both belong to."""

    request: str
    identity: str | None
    expires: float
    answers: dict[str, Any] = {}
    memory: dict[str, Any] = {}


class Rounds:
    """Carries answers from round to round; processes that serve the same clients share a secret."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._signer = StateSigner(secret or os.urandom(32))

    def restore(self, exchange: ClientExchange) -> None:
        """Restore the answers of earlier rounds, and add those that come with this one."""
        params = exchange.params
        if params.get("requestState") is not None:
            state = self._open(params["requestState"], exchange)
            exchange.answers |= state.answers
            exchange.memory |= state.memory
        given = params.get("inputResponses") or {}
        if not isinstance(given, dict):
            raise ProtocolError(INVALID_PARAMS, "inputResponses must be an object")
        exchange.answers |= {key: answer for key, answer in given.items() if isinstance(answer, dict)}

    def questions(self, exchange: ClientExchange, required: InputRequired) -> dict[str, Any]:
        """The result that asks the client, and holds what the next round must know."""
        asked = {key: {"method": each.method, "params": each.params} for key, each in required.questions.items()}
        return {"resultType": "input_required", "inputRequests": asked, "requestState": self._seal(exchange)}

    def _seal(self, exchange: ClientExchange) -> str:
        caller, expires = _identity_id(exchange), time.time() + LIFETIME
        state = RequestState(_fingerprint(exchange), caller, expires, exchange.answers, exchange.memory)
        return self._signer.sign(msgspec.json.encode(state))

    def _open(self, token: object, exchange: ClientExchange) -> RequestState:
        state = self._verified(token)
        if state.request != _fingerprint(exchange) or state.identity != _identity_id(exchange):
            raise _refusal("it belongs to another request")
        if state.expires < time.time():
            raise _refusal("it has expired")
        return state

    def _verified(self, token: object) -> RequestState:
        if not isinstance(token, str) or len(token) > MAX_STATE:
            raise _refusal("it is not a state of this server")
        content = self._signer.content_of(token)
        if content is None:
            raise _refusal("it has been changed")
        return msgspec.json.decode(content, type=RequestState)


def _fingerprint(exchange: ClientExchange) -> str:
    """What a state is bound to: the method, and its parameters without those that differ from round to round."""
    from hashlib import sha256

    left_out = ("_meta", "inputResponses", "requestState")
    same = {name: value for name, value in exchange.params.items() if name not in left_out}
    return sha256(msgspec.json.encode([exchange.method, same], order="deterministic")).hexdigest()


def _identity_id(exchange: ClientExchange) -> str | None:
    return None if exchange.identity is None else exchange.identity.id


def _refusal(why: str) -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, f"The request state is refused: {why}")
