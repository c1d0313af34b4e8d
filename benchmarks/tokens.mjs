// Reads JSON lines, each a text, and writes how many tokens each has by o200k_base.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.argv[2], "package.json"));
const { countTokens } = require("gpt-tokenizer/encoding/o200k_base");
for await (const line of createInterface({ input: process.stdin })) {
  console.log(countTokens(JSON.parse(line)));
}
