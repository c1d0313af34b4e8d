"""Test vectors of our own in the form of prov-spec's: the same methods and faults, other values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

_RESULT: Final = {"items": [{"name": "tea", "price": 2.5}], "more": False, "note": None}
_CONTENT: Final = {"b": {"z": [1, "é"], "a": None}, "a": True, "c": "line\nbreak"}
_CANONICAL: Final = json.dumps(_CONTENT, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
_DIGEST: Final = hashlib.sha256(_CANONICAL.encode()).hexdigest()


def _evidence(field: str, pointer: str) -> dict[str, str]:
    return {"schema_version": "evidence.v0.1", "field": field, "source": f"artifact:order-7#json:{pointer}"}


def _artifact(digest: str) -> dict[str, Any]:
    value = {"alg": "sha256", "value": digest}
    return {"schema_version": "artifact.v0.1", "artifact_id": "order-7", "media_type": "text/plain", "digest": value}


_FILES: Final[dict[str, Any]] = {
    "adapter.wrap.envelope_v0_1/input": _RESULT,
    "adapter.wrap.envelope_v0_1/expected": {"schema_version": "mcp.envelope.v0.1", "result": _RESULT},
    "adapter.wrap.envelope_v0_1/negative/double_wrapped": {
        "envelope": {
            "schema_version": "mcp.envelope.v0.1",
            "result": {"schema_version": "mcp.envelope.v0.1", "result": [1]},
        }
    },
    "adapter.wrap.envelope_v0_1/negative/wrong_schema_version": {
        "envelope": {"schema_version": "mcp.envelope.v1", "result": [1]}
    },
    "engine.extract.evidence.json_pointer/input": {
        "artifact_id": "order-7",
        "content": {"id": "order-7", "why": ["paid"], "fix": ["pack", "send", "bill"]},
    },
    "engine.extract.evidence.json_pointer/expected": {
        "evidence": [
            _evidence("anchored_id", "/id"),
            _evidence("safest_next_step", "/why/0"),
            *(_evidence(f"plan[{i}]", f"/fix/{i}") for i in range(3)),
        ]
    },
    "integrity.digest.sha256/input": _CONTENT,
    "integrity.digest.sha256/expected": {"canonical_form": _CANONICAL, "digest": {"alg": "sha256", "value": _DIGEST}},
    "integrity.digest.sha256/negative/non_hex_chars": {"artifact": _artifact("x" * 64)},
    "integrity.digest.sha256/negative/uppercase_hex": {"artifact": _artifact(_DIGEST.upper())},
    "integrity.digest.sha256/negative/wrong_length": {"artifact": _artifact(_DIGEST[:63])},
    "method_id_syntax/positive/valid_ids": {"method_ids": ["one", "shop.order", "a_b.c_v2_1", "shop.order.item_2"]},
    "method_id_syntax/negative/hyphen_separator": {"method_id": "shop-order"},
    "method_id_syntax/negative/reserved_namespace": {"method_id": "policy.order.refuse"},
    "method_id_syntax/negative/starts_with_digit": {"method_id": "2nd.order"},
    "method_id_syntax/negative/uppercase": {"method_id": "shop.Order"},
}


def write_vectors(folder: Path) -> Path:
    """Write the vectors as prov-spec lays them out."""
    for name, content in _FILES.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        is_case = "/negative/" in name or "/positive/" in name
        meta = {"_vector_meta": {"id": name, "expect": "pass" if "/positive/" in name else "fail"}} if is_case else {}
        path.write_text(json.dumps(meta | content))
    return folder
