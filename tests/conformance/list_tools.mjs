// Lists the tools of servers with the official TypeScript clients: `node list_tools.mjs <parts> <program> <document>…`.
// Each document is served by `<program> <document>` over stdio; a line of JSON tells what each client found.
import { pathToFileURL } from "node:url";

const [parts, program, ...documents] = process.argv.slice(2);
const command = JSON.parse(program);
const load = (path) => import(pathToFileURL(`${parts}/node_modules/@modelcontextprotocol/${path}`).href);

const clients = {
  sdk: [await load("sdk/dist/esm/client/index.js"), await load("sdk/dist/esm/client/stdio.js")],
  client: [await load("client/dist/index.mjs"), await load("client/dist/stdio.mjs")],
};

async function listed(name, document) {
  const [{ Client }, { StdioClientTransport }] = clients[name];
  const client = new Client({ name: "judge", version: "1" });
  const [first, ...rest] = command;
  await client.connect(new StdioClientTransport({ command: first, args: [...rest, document], stderr: "ignore" }));
  try {
    const tools = [];
    let cursor;
    do {
      const page = await client.listTools(cursor === undefined ? {} : { cursor });
      tools.push(...page.tools);
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return new Set(tools.map((tool) => tool.name)).size;
  } finally {
    await client.close();
  }
}

for (const document of documents) {
  for (const name of Object.keys(clients)) {
    const line = { document, client: name };
    try {
      line.tools = await listed(name, document);
    } catch (error) {
      line.error = String(error.message ?? error).slice(0, 500);
    }
    console.log(JSON.stringify(line));
  }
}
