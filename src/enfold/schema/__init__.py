"""JSON Schema: made from Python types, checked, cast, repaired. The only folder that looks into users' types."""
