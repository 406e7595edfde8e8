// A certified provider of OpenID Connect (npm's oidc-provider), where a name is enough to sign in:
// node provider.mjs MODULES PORT REDIRECT. Ann is in the group on-call, everyone in sales, and eve in on-call until
// somebody asks for /eve-leaves. Access tokens end at once, so that sessions are renewed as often as they can be.
import http from "node:http";
const [, , modules, port, redirect] = process.argv;
const { default: Provider } = await import(`${modules}/oidc-provider/lib/index.js`);
const onCall = new Set(["ann", "eve"]);
const html = (body) => `<!doctype html><html lang="en"><title>Provider</title><link rel="icon" href="data:,">${body}`;
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "redrive", client_secret: "secret", redirect_uris: [redirect],
    grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"] }],
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  conformIdTokenClaims: false, // they are in the ID token
  issueRefreshToken: () => true,
  ttl: { AccessToken: 1 },
  features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: true,
    logoutSource(ctx, form) { ctx.body = html(`${form}<button id="leave" form="op.logoutForm" name="logout" value="yes">Leave</button>`); },
    postLogoutSuccessSource(ctx) { ctx.body = html("<p id=left>Left"); } }, deviceFlow: { enabled: true,
    userCodeConfirmSource(ctx, form) {
      ctx.body = html(`${form}<button id="confirm" form="op.deviceConfirmForm">Confirm</button>`);
    },
    successSource(ctx) { ctx.body = html("<p id=confirmed>Confirmed"); } } },
  interactions: { url: (_, interaction) => `/as/${interaction.uid}` },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: onCall.has(id) ? ["sales", "on-call"] : ["sales"] }),
  }),
  async loadExistingGrant(ctx) { // consent is not asked for
    const { client, session, provider } = ctx.oidc;
    const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
    grant.addOIDCScope("openid profile groups");
    await grant.save();
    return grant;
  },
});
const answer = provider.callback();
http.createServer(async (req, res) => {
  const url = new URL(req.url, "http://127.0.0.1");
  const name = url.searchParams.get("name");
  if (url.pathname == "/eve-leaves") res.end(`${onCall.delete("eve")}`);
  else if (!url.pathname.startsWith("/as/")) answer(req, res);
  else if (name) await provider.interactionFinished(req, res, { login: { accountId: name } });
  else res.setHeader("content-type", "text/html").end(html(`<form><input name="name" id="name"><button id="enter">Enter</button></form>`));
}).listen(port, "127.0.0.1", () => console.log("listening"));
