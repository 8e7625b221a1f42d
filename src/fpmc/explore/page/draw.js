// Arrays from the server, and arrays as pixels of a canvas.

export function decode(packed) {
  if (!packed) return null;
  if (packed.values) return packed;
  const bytes = Uint8Array.from(atob(packed.f32 ?? packed.u8), (letter) => letter.charCodeAt(0));
  let values = bytes;
  if (packed.f32) values = new Float32Array(bytes.buffer);
  else if (packed.high !== undefined) {
    values = Float32Array.from(bytes, (step) => packed.low + (step / 255) * (packed.high - packed.low));
  }
  return { shape: packed.shape, values, bytes: !packed.f32 && packed.high === undefined };
}

export function largest(array) {
  let most = 0;
  for (const value of array.values) most = Math.max(most, Math.abs(value));
  return most;
}

// An image (C, H, W) in [−1, 1], or bytes. A noisy one is darkened until it fits.
export function toImageData(array, fit = false) {
  const [channels, height, width] = array.shape;
  const scale = fit ? 1 / Math.max(1, largest(array)) : 1;
  const image = new ImageData(width, height);
  for (let at = 0; at < height * width; at += 1) {
    for (let color = 0; color < 3; color += 1) {
      const value = array.values[(channels === 3 ? color : 0) * height * width + at];
      image.data[4 * at + color] = array.bytes ? value : Math.round(127.5 + 127.5 * value * scale);
    }
    image.data[4 * at + 3] = 255;
  }
  return image;
}

export function show(canvas, array, fit = false) {
  const [, height, width] = array.shape;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(toImageData(array, fit), 0, 0);
}

// Cividis, which looks the same to the colour-blind.
const STOPS = [[0, 34, 78], [60, 77, 110], [124, 123, 120], [187, 173, 108], [254, 232, 56]];

export function heat(share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (STOPS.length - 1);
  const [from, to] = [STOPS[Math.floor(place)], STOPS[Math.floor(place) + 1]];
  return from.map((value, color) => Math.round(value + (place % 1) * (to[color] - value)));
}

export function showHeat(canvas, array, most = largest(array)) {
  const [height, width] = array.shape.slice(-2);
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  for (let at = 0; at < height * width; at += 1) {
    image.data.set([...heat(most > 0 ? array.values[at] / most : 0), 255], 4 * at);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// The border of where a map is above half of its largest value.
export function outline(canvas, array, color, zoom = 8) {
  const [height, width] = array.shape.slice(-2);
  [canvas.width, canvas.height] = [width * zoom, height * zoom];
  const context = canvas.getContext("2d");
  const half = largest(array) / 2;
  const inside = (y, x) => y >= 0 && x >= 0 && y < height && x < width && array.values[y * width + x] > half;
  context.fillStyle = color;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (!inside(y, x)) continue;
      if (!inside(y - 1, x)) context.fillRect(x * zoom, y * zoom, zoom, 2);
      if (!inside(y + 1, x)) context.fillRect(x * zoom, (y + 1) * zoom - 2, zoom, 2);
      if (!inside(y, x - 1)) context.fillRect(x * zoom, y * zoom, 2, zoom);
      if (!inside(y, x + 1)) context.fillRect((x + 1) * zoom - 2, y * zoom, 2, zoom);
    }
  }
}

// Three digits of a small number, a large one whole.
export const digits = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3));

export const mark = () => getComputedStyle(document.documentElement).getPropertyValue("--mark");

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("aria-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

export function picture(array, label, { fit = false } = {}) {
  const canvas = element("canvas", { role: "img", "aria-label": label });
  show(canvas, array, fit);
  return canvas;
}
