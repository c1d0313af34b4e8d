"""Repair a result that does not match its schema, without loss, and list the changes."""

from enfold import cast, repair

schema = {
    "type": "object",
    "properties": {
        "price": {"type": "number"},
        "status": {"enum": ["open", "closed"]},
        "note": {"type": "string", "default": "-"},
    },
    "required": ["price", "status"],
}
answer = {"price": "19.99", "status": "archived", "internal": "x"}

repaired = repair(schema, answer)
print(repaired.data)
for warning in repaired.warnings:
    print(warning.code, warning.path)

print(cast(schema, answer))  # TypeBox's Value.Cast, for comparison
