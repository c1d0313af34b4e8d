// A real issuer on loopback, for tests: client credentials give JWT access tokens. `ROTATE` on stdin gives it a new key.
import { createServer } from "node:http";
import { createInterface } from "node:readline";
import { exportJWK, generateKeyPair } from "jose";
import Provider from "oidc-provider";

const resource = "https://api.example.com/";
let handle;
const server = createServer((request, response) => handle(request, response));

async function start(kid) {
  const { privateKey } = await generateKeyPair("RS256", { extractable: true });
  const provider = new Provider(`http://127.0.0.1:${server.address().port}`, {
    jwks: { keys: [{ ...(await exportJWK(privateKey)), kid, use: "sig", alg: "RS256" }] },
    clients: [{
      client_id: "ann", client_secret: "a secret of the tests", grant_types: ["client_credentials"],
      redirect_uris: [], response_types: [], token_endpoint_auth_method: "client_secret_post",
    }],
    scopes: ["shop:order"],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: () => ({ scope: "shop:order", audience: resource, accessTokenFormat: "jwt" }),
      },
    },
  });
  handle = provider.callback();
}

server.listen(0, "127.0.0.1", async () => {
  await start("first");
  console.log(server.address().port);
});
createInterface({ input: process.stdin })
  .on("line", async (line) => { if (line === "ROTATE") { await start("second"); console.log("rotated"); } })
  .on("close", () => process.exit(0));
