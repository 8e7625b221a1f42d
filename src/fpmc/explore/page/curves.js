// Two drawings along the noise levels: what the groups of a denoiser weigh, and how far answers are from the network's.

import { ask, Dropped } from "fpmc/api";
import { element } from "fpmc/draw";
import { view } from "fpmc/state";

// Okabe and Ito's colours, told apart with any kind of sight; lines have marks of their own as well.
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8f99", "#b8a600"];
const MARKS = ["●", "■", "▲", "◆", "▼", "✚"];
const [WIDE, HIGH, LEFT, BELOW] = [innerWidth < 760 ? 350 : 560, 240, 46, 34];   // words stay readable on a phone

export function makeCurves(root, about, { fail }) {
  const weights = element("div", { id: "weights" }), errors = element("div", { id: "errors" });
  root.append(weights, errors);
  const known = { weights: new Map(), error: new Map() };
  let turn = 0;

  async function update() {
    const mine = ++turn;
    try {
      await loadWeights(mine);
      if (about.reference !== null) await loadErrors(mine);
      else errors.replaceChildren(title("Distance from the network"), words("There is no network to compare with."));
    } catch (error) {
      if (!(error instanceof Dropped)) fail(error);
    }
  }

  async function get(kind, body) {
    const key = JSON.stringify(body);
    if (!known[kind].has(key)) known[kind].set(key, await ask(kind, body, `${kind}${body.denoiser}`));
    return known[kind].get(key);
  }

  async function loadWeights(mine) {
    const { name, analytic } = about.denoisers[view.focus];
    if (!analytic) { weights.replaceChildren(title("Weights of groups"), words(`${name} is a network: it has no groups.`)); return; }
    const found = [];
    for (let level = 0; level < about.levels.length; level += 1) {
      found[level] = (await get("weights", { denoiser: view.focus, level, seed: 0 })).groups;
      if (mine !== turn) return;
    }
    drawWeights(name, found);
  }

  async function loadErrors(mine) {
    const lines = about.denoisers.map(() => []);
    const judge = about.reference, seed = view.seed;
    for (let level = 0; level < about.levels.length; level += 1) {
      for (let denoiser = 0; denoiser < lines.length; denoiser += 1) {
        if (denoiser === judge) continue;
        lines[denoiser][level] = (await get("error", { denoiser, level, seed })).error;
        if (mine !== turn) return;
      }
      drawErrors(lines, judge, seed);
    }
  }

  function drawWeights(name, found) {
    const total = new Map();
    found.flat().forEach((group) => total.set(group.name, (total.get(group.name) ?? 0) + group.share));
    const names = [...total.keys()].sort((a, b) => total.get(b) - total.get(a));
    if (found.every((groups) => groups.length === 1)) {
      const rows = found.map((groups, level) => `σ = ${about.levels[level].toPrecision(2)}: ${groups[0].name}`);
      const list = element("p", { className: "quiet", textContent: [...new Set(rows.map((row) => row.split(": ")[1]))].join(" → ") });
      weights.replaceChildren(title(`Groups of ${name}`), words("One group at every level, so it has all the weight. From strong noise to none:"), list);
      return;
    }
    const shown = names.slice(0, COLORS.length - 1);
    const svg = axes(`weights of the groups of ${name} by noise level`);
    const step = (WIDE - LEFT) / found.length;
    found.forEach((groups, level) => {
      let from = 0;
      const parts = shown.map((each) => groups.find((group) => group.name === each)?.share ?? 0);
      parts.push(Math.max(0, 1 - parts.reduce((a, b) => a + b, 0)));
      parts.forEach((share, index) => {
        svg.append(shape("rect", { x: LEFT + level * step + 1, width: step - 2, y: (HIGH - BELOW) * (1 - from - share),
          height: Math.max(0, (HIGH - BELOW) * share), fill: COLORS[index] ?? COLORS[6] }));
        from += share;
      });
    });
    svg.append(...ticks(found.length, step), label(4, 12, "100 %"), label(4, HIGH - BELOW, "0 %"));
    const rest = names.length > shown.length ? [`${names.length - shown.length} others`] : [];
    weights.replaceChildren(title(`Weights of the groups of ${name}`), svg, legend([...shown, ...rest], COLORS));
  }

  function drawErrors(lines, judge, seed) {
    const values = lines.flat().filter((value) => value > 0);
    if (!values.length) return;
    const low = Math.log10(Math.min(...values)) - 0.1, high = Math.log10(Math.max(...values)) + 0.1;
    const svg = axes("mean squared distance from the network's answer by noise level");
    const step = (WIDE - LEFT) / about.levels.length, tall = HIGH - BELOW;
    const place = (value) => tall * (1 - (Math.log10(Math.max(value, 10 ** low)) - low) / (high - low || 1));
    for (let power = Math.ceil(low); power <= Math.floor(high); power += 1) {
      svg.append(shape("line", { x1: LEFT, x2: WIDE, y1: place(10 ** power), y2: place(10 ** power), stroke: "currentColor", opacity: 0.15 }), label(2, place(10 ** power) + 4, `10${superscript(power)}`));
    }
    lines.forEach((line, denoiser) => {
      if (denoiser === judge) return;
      const points = line.map((value, level) => [LEFT + (level + 0.5) * step, place(value)]);
      svg.append(shape("polyline", { points: points.map((point) => point.join(",")).join(" "), fill: "none", stroke: COLORS[denoiser % COLORS.length], "stroke-width": 2 }));
      points.forEach(([x, y]) => svg.append(label(x, y + 4, MARKS[denoiser % MARKS.length], { "text-anchor": "middle", style: "", fill: COLORS[denoiser % COLORS.length] })));
    });
    svg.append(...ticks(about.levels.length, step));
    const names = about.denoisers.map(({ name }) => name);
    errors.replaceChildren(title(`Mean squared distance from ${names[judge]}`), words(`Answers to the network's own states, seed ${seed}.`), svg,
      legend(names.filter((_, index) => index !== judge), COLORS.filter((_, index) => index !== judge), MARKS.filter((_, index) => index !== judge)));
  }

  function ticks(count, step) {
    return [0, Math.floor(count / 3), Math.floor((2 * count) / 3), count - 1].map((level) =>
      label(level === count - 1 ? WIDE : LEFT + (level + 0.5) * step, HIGH - BELOW + 16, `σ ${about.levels[level].toPrecision(2)}`, { "text-anchor": level === count - 1 ? "end" : "middle" }));
  }
  return { update };
}

const title = (text) => element("h3", { textContent: text });
const words = (text) => element("p", { className: "quiet", textContent: text });
const superscript = (power) => String(power).replace(/[-\d]/g, (sign) => ({ "-": "⁻" })[sign] ?? "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]);

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== "") made.setAttribute(key, value);
  return made;
}

function label(x, y, text, more = {}) {
  const made = shape("text", { x, y, ...more });
  made.textContent = text;
  if (more.fill) made.style.fill = more.fill;
  return made;
}

function axes(words) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH - BELOW + 24}`, role: "img", "aria-label": words });
  svg.append(shape("line", { x1: LEFT, x2: WIDE, y1: HIGH - BELOW, y2: HIGH - BELOW, stroke: "currentColor", opacity: 0.4 }));
  return svg;
}

function legend(names, colors, marks = []) {
  return element("p", { className: "quiet" }, ...names.map((name, index) => {
    const dot = element("b", { textContent: `${marks[index] ?? "■"} ` });
    dot.style.color = colors[index];
    return element("span", { className: "line-name" }, dot, name);
  }));
}
