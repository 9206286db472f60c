// Requests to the router that served this script. Keys are sent in bodies, so that no access log has them in its URLs.

const HERE = new URL(".", import.meta.url);

// Longer than any time limit of the store.
const PATIENCE = 15000;

// The service has answered, but not with what was asked for.
class Refused extends Error {}

async function call(name, fields) {
  const response = await fetch(new URL(`api/${name}`, HERE), {
    method: "POST",
    headers: { "x-locks-admin": "1" },
    body: new URLSearchParams(fields),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
    signal: AbortSignal.timeout(PATIENCE),
  });
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const answer = isJson ? await response.json() : null;
  if (!response.ok) throw new Refused(answer?.error ?? `the service answers with status ${response.status}`);
  if (!answer) throw new Refused("the service does not answer with JSON: the session may be over");
  return answer;
}

function reasonOf(error) {
  return error instanceof Refused ? error.message : "the service does not answer";
}
