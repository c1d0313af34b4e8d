"""What a text costs a model to read: an estimate of its tokens, the same wherever a cost is shown."""

from __future__ import annotations

from typing import Any, Final

import msgspec

BYTES_PER_TOKEN: Final = 4  # of UTF-8; tokenizers differ, and none is asked


def estimate_tokens(text: str | bytes | dict[str, Any] | list[Any]) -> int:
    """About how many tokens a text, or the JSON of a value, has."""
    if not isinstance(text, str | bytes):
        text = msgspec.json.encode(text, enc_hook=str)
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_PER_TOKEN)
