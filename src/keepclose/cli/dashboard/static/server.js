// Requests to the server of this page. The token comes in the fragment of the URL, which browsers
// do not send, and goes out in a header; it stays in this tab.

const TOKEN = "keepclose-token";
const RETRY_MS = 1000;

export function takeToken() {
  const given = /^#token=([\w-]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(TOKEN, given[1]);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem(TOKEN) !== null;
}

const headers = () => ({ Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` });

export class ServerError extends Error {}

async function answerOf(response) {
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new ServerError(value.error ?? `the dashboard answers ${response.status}`);
  return value;
}

export async function ask(path, query, signal) {
  const target = `${path}?${new URLSearchParams(query)}`;
  return answerOf(await fetch(target, { headers: headers(), signal, cache: "no-store" }));
}

export async function send(path, value) {
  return answerOf(
    await fetch(path, {
      method: "POST",
      headers: { ...headers(), "Content-Type": "application/json" },
      body: JSON.stringify(value),
    }),
  );
}

/** Follow the stream of changes for good; a new connection begins with all values again. */
export async function follow(onOpen, onMessage, onLost) {
  for (;;) {
    try {
      const response = await fetch("/api/stream", { headers: headers(), cache: "no-store" });
      if (!response.ok) await answerOf(response);
      onOpen();
      await read(response.body, onMessage);
      onLost("the dashboard has ended the connection");
    } catch (error) {
      onLost(error instanceof ServerError ? error.message : "the dashboard does not answer");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function read(body, onMessage) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    // A first message of many Services comes in many parts, so they are joined at its end only.
    if (!value.includes("\n")) {
      parts.push(value);
      continue;
    }
    const lines = (parts.join("") + value).split("\n");
    parts.length = 0;
    parts.push(lines.pop());
    for (const line of lines) {
      if (line.startsWith("data: ")) onMessage(JSON.parse(line.slice(6)));
    }
  }
}
