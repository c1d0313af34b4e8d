"""Record two nested runs, sign and store the records, verify them, and draw their lineage."""

import tempfile
from pathlib import Path

from enfold import OperationSpec, local_envelope
from enfold.provenance import (
    CaptureOptions,
    Recorder,
    RecordStore,
    build_graph,
    generate_key,
    public_keys,
    to_mermaid,
    verify_lineage,
)

total = OperationSpec(namespace="shop", name="total")
price = OperationSpec(namespace="shop", name="price")


def record(recorder: Recorder) -> str:
    """Record what a server records when a caller asks for provenance: the call, and the call it makes."""
    outer = recorder.begin(CaptureOptions("full"), adapter="http")
    assert outer is not None
    outer.nested().succeeded(price, {"item": "tea", "api_key": "s3cret"}, local_envelope(3.5, "shop.price"))
    outer.succeeded(total, {"items": ["tea"]}, local_envelope(3.5, "shop.total"))
    return outer.run_id


def main() -> None:
    key = generate_key()
    with tempfile.TemporaryDirectory() as folder, RecordStore(Path(folder) / "records.db") as store:
        run_id = record(Recorder(key=key, store=store))
        records = store.lineage(run_id)

    print("verified:", all(verdict.ok for verdict in verify_lineage(records, public_keys([key.public_key]))))
    print("a secret in it:", "s3cret" in str(records))
    records[0]["tool"]["name"] = "shop.refund"
    print("after a change:", [verdict.faults for verdict in verify_lineage(records) if not verdict.ok])

    chart = to_mermaid(build_graph(records))
    print("arrows:", chart.count("-->"))


if __name__ == "__main__":
    main()
