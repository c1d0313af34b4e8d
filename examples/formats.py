"""Write one result in every format, and convert it back."""

import json

from enfold import local_envelope
from enfold.formats import FORMATS, mcp_envelope_v0_1, tool_envelope_v1
from enfold.formats.conversion import convert

found = local_envelope([{"item": "tea", "price": 3.5}, {"item": "cake", "price": 4.0}], "shop.list")


def main() -> None:
    print(json.dumps(mcp_envelope_v0_1.write(found)))

    summary, block = tool_envelope_v1.write(found)["content"]
    print(summary["text"])
    print(tool_envelope_v1.parse_block(block["text"]).payload == found.data)

    converted = convert(FORMATS["envelope"].write(found), FORMATS["envelope"], FORMATS["result"])
    print(converted.wire == {"result": found.data}, [warning.path for warning in converted.lost])


if __name__ == "__main__":
    main()
