// Requests to the server of this page. A failure is an Error with the server's sentence and its status.

let csrfToken = "";

/** @param {string} token */
export function useToken(token) {
  csrfToken = token;
}

/** @param {string} path @param {Record<string, string | number>} [query] @param {AbortSignal} [signal] */
export async function read(path, query = {}, signal) {
  return answer(await fetch(`${path}?${new URLSearchParams(strings(query))}`, { signal }));
}

/** @param {string} path @param {unknown} body @param {Record<string, string | number>} [query] @param {AbortSignal} [signal] */
export async function write(path, body, query = {}, signal) {
  const data = body instanceof Blob ? body : JSON.stringify(body);
  const headers = { "x-csrf-token": csrfToken };
  const options = { method: "POST", headers, body: data, signal };
  return answer(await fetch(`${path}?${new URLSearchParams(strings(query))}`, options));
}

/** @param {string} job */
export function jobPath(job) {
  return `/api/jobs/${encodeURIComponent(job)}`;
}

/** @param {Record<string, string | number>} query */
function strings(query) {
  return Object.fromEntries(Object.entries(query).map(([name, value]) => [name, String(value)]));
}

/** @param {Response} response */
async function answer(response) {
  if (!response.ok) {
    const sentence = (await response.text()).trim() || response.statusText;
    throw Object.assign(new Error(sentence), { status: response.status });
  }
  return response.json();
}
