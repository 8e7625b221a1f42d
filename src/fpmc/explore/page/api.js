// Questions to the server, or to the record that an exported page carries. A newer question of a channel drops the older.

const element = document.getElementById("record");
export const record = JSON.parse(element.textContent || "null");
const page = Math.random().toString(36).slice(2, 10);      // two tabs do not overtake each other
const running = new Map();                                  // channel -> { sequence, controller }

export class Dropped extends Error {}

function open(channel) {
  const before = running.get(channel);
  before?.controller.abort();
  const one = { sequence: (before?.sequence ?? 0) + 1, controller: new AbortController() };
  running.set(channel, one);
  return one;
}

async function post(kind, body, channel) {
  const { sequence, controller } = open(channel);
  const headers = { "x-channel": `${page}.${channel}`, "x-sequence": String(sequence) };
  let response;
  try {
    response = await fetch(`/api/${kind}`, {
      method: "POST", headers, body: body instanceof Blob ? body : JSON.stringify(body), signal: controller.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw new Dropped();
    throw new Error("The server does not answer. Is fpmc explore still running?");
  }
  if (response.status === 409) throw new Dropped();
  if (!response.ok) {
    const why = await response.json().catch(() => ({ error: `The server failed (${response.status}); its terminal tells more.` }));
    throw new Error(why.error);
  }
  return response;
}

export async function ask(kind, body = {}, channel = kind) {
  if (record) return recorded(kind, body);
  try {
    return await (await post(kind, body, channel)).json();
  } catch (error) {
    throw error.name === "AbortError" ? new Dropped() : error;
  }
}

export function drop(channel) {
  running.get(channel)?.controller.abort();
}

// Calls `step` with each line as it comes.
export async function stream(kind, body, channel, step) {
  if (record) return recorded(kind, body).forEach(step);
  const response = await post(kind, body, channel);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return undefined;
      text += value;
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines) {
        const found = JSON.parse(line);
        if (found.error) throw new Error(found.error);
        step(found);
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? new Dropped() : error;
  }
}

// The same names as export.py gives.
function keyOf(kind, body) {
  let parts = [body.denoiser, body.start?.seed ?? body.seed, body.level];
  if (kind === "pixel") parts = [body.denoiser, body.sigma.toFixed(4), body.y, body.x];
  if (kind === "weights") parts = [body.denoiser, body.level];
  if (kind === "shares") parts.push(...(body.region ?? ["all"]));
  return [kind, ...parts.filter((part) => part !== undefined && part !== null)].join(" ");
}

function recorded(kind, body) {
  const found = record.answers[keyOf(kind, body)];
  if (!found) {
    const { levels, asked_levels: asked } = record.answers.about;
    const known = asked.map((level) => levels[level].toPrecision(3)).join(", ");
    throw new Error(`This page is a record, and this view is not in it: it knows who made what at σ = ${known}. Start fpmc explore to see all.`);
  }
  const shown = (row) => ({ ...row, pixels: record.pictures[row.pixels], map: record.pictures[row.map] });
  return found.images ? { ...found, images: found.images.map(shown) } : found;
}
