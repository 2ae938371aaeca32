// Calls to the control plane. Every failure is an ApiError with what problem+json says.

export class ApiError extends Error {
  constructor(message, { status = 0, title = "Failed", fields = [] } = {}) {
    super(message);
    this.status = status;
    this.title = title;
    this.fields = fields;
  }
}

let onSignedOut = () => {};
export function whenSignedOut(callback) { onSignedOut = callback; }

/** Keys of POSTs that got no answer: the same request again is the same request to the server. */
const unanswered = new Map();

export async function call(method, path, body, limitMs = 30000) {
  const request = `${path} ${JSON.stringify(body)}`;
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method === "POST") {
    if (!unanswered.has(request)) unanswered.set(request, makeKey());
    headers["Idempotency-Key"] = unanswered.get(request);
  }
  let response;
  try {
    response = await fetch(path, {
      method, headers, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(limitMs),
    });
  } catch {
    throw new ApiError("The control plane does not answer.", { title: "Not reachable" });
  }
  const text = await response.text();
  if (method === "POST") unanswered.delete(request);
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(`${response.status}: not a JSON answer`, { status: response.status });
  }
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/v1/session") onSignedOut();
  throw new ApiError(answer?.detail || `status ${response.status}`, {
    status: response.status, title: answer?.title, fields: answer?.errors,
  });
}

export const get = (path, limitMs) => call("GET", path, undefined, limitMs);
export const post = (path, body) => call("POST", path, body);
export const remove = (path) => call("DELETE", path);

/** Every item of a cursor-paged list, at most `most`. */
export async function list(path, most = 200, limitMs = undefined) {
  const items = [];
  let cursor = null;
  do {
    const page = await get(path + (cursor ? `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : ""), limitMs);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return items;
}

let tokenNeeded = false;
export function whetherTokenNeeded(needed) { tokenNeeded = needed; }

/** The same call for a terminal; the token, where one is needed, stays a variable. */
export function asCurl(method, path, body) {
  const parts = ["curl -fsS"];
  if (method !== "GET") parts.push(`-X ${method}`);
  if (tokenNeeded) parts.push('-H "Authorization: Bearer $DFLASH_MESH_TOKEN"');
  if (body !== undefined) {
    parts.push("-H 'Content-Type: application/json'");
    parts.push(`-d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`);
  }
  parts.push(`'${location.origin}${path}'`);
  return parts.join(" ");
}

function makeKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
