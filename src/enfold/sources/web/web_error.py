"""What can go wrong with a request, as one error; who sent it decides what its caller hears."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

# unsendable: the request itself is wrong. refused: the address may not be contacted. unreachable: nothing was sent.
# broken: the connection ended too early. unreadable: the answer is no HTTP, or cannot be decompressed.
# too_large: the answer is over a limit. redirect: it leads nowhere, elsewhere, or in circles. late: no answer in time.
Kind: TypeAlias = Literal[
    "unsendable", "refused", "unreachable", "broken", "unreadable", "too_large", "redirect", "late"
]

IDEMPOTENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"})


class WebError(Exception):
    """A request without an answer; the sentence is for people, and holds no secret."""

    def __init__(self, kind: Kind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.sentence = sentence

    @property
    def was_sent(self) -> bool:
        """Whether the server can have seen the request."""
        return self.kind not in ("unsendable", "refused", "unreachable")


def response_too_large(limit: int) -> WebError:
    return WebError("too_large", f"The response is over the limit of {limit} bytes")
