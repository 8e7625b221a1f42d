// What is being looked at. It is written into the address after #, so that a link brings the same view back.

export const view = { seed: 0, level: 9, focus: 0, region: null, without: [], own: null, paint: null };
const listeners = [];

export const onChange = (listener) => listeners.push(listener);

export function change(patch) {
  const changed = Object.keys(patch).filter((key) => JSON.stringify(view[key]) !== JSON.stringify(patch[key]));
  if (!changed.length) return;
  Object.assign(view, patch);
  write();
  for (const listener of listeners) listener(new Set(changed));
}

export const start = () => ({ seed: view.seed, own: view.own, paint: view.paint });
export const startKey = () => JSON.stringify(start());

let timer;
function write() {
  clearTimeout(timer);                                      // browsers limit how often an address may change
  timer = setTimeout(() => history.replaceState(null, "", `${location.pathname}#${toFragment()}`), 120);
}

export function toFragment() {
  const parts = new URLSearchParams({ seed: view.seed, level: view.level, on: view.focus });
  if (view.region) parts.set("box", view.region.join("."));
  if (view.without.length) parts.set("without", view.without.join("."));
  if (view.own) parts.set("own", `${view.own.picture}.${Number(view.own.noise)}.${view.own.sigma}`);
  if (view.paint) {
    const strokes = view.paint.strokes.map(([y, x, value]) => `${y}.${x}.${Math.round(value * 100)}`);
    parts.set("paint", [`${view.paint.denoiser}.${view.paint.level}`, ...strokes].join("_"));
  }
  return parts.toString();
}

export function fromFragment(text, about) {
  const parts = new URLSearchParams(text.replace(/^#/, ""));
  const whole = (name, fallback, most) => {
    const value = Number(parts.get(name) ?? fallback);
    return Number.isInteger(value) && value >= 0 && value <= most ? value : fallback;
  };
  const asked = about.asked_levels ?? [11];                 // an exported page begins where it knows who made what
  const numbers = (text) => text.split(".").map(Number);
  const patch = {
    seed: whole("seed", about.seeds?.[0] ?? 0, 2 ** 32 - 1),
    level: whole("level", asked[asked.length >> 1], about.levels.length - 1),
    focus: whole("on", 0, about.denoisers.length - 1),
    region: null, without: [], own: null, paint: null,
  };
  if (parts.get("box")) patch.region = numbers(parts.get("box"));
  if (parts.get("without")) patch.without = numbers(parts.get("without"));
  const own = parts.get("own")?.match(/^([0-9a-f]{16})\.([01])\.(.+)$/);
  if (own) patch.own = { picture: own[1], noise: own[2] === "1", sigma: Number(own[3]) };
  const paint = parts.get("paint")?.split("_");
  if (paint) {
    const [denoiser, level] = numbers(paint[0]);
    patch.paint = { denoiser, level, strokes: paint.slice(1).map(numbers).map(([y, x, v]) => [y, x, v / 100]) };
  }
  return patch;
}
