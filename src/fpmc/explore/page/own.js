// Your own input: paint on a state, or drop a picture and say how noisy it is.

import { ask, Dropped } from "fpmc/api";
import { element, mark } from "fpmc/draw";
import { change, view } from "fpmc/state";

export function makeOwn(root, about, { fail, pictures }) {
  const brush = element("button", { type: "button", id: "brush", textContent: "✎ Paint on a state", "aria-pressed": "false" });
  const tone = element("input", { type: "range", min: -1, max: 1, step: 0.1, value: 1, id: "tone" });
  const clear = element("button", { type: "button", id: "back-to-seed", textContent: "Back to the seed", disabled: true });
  const file = element("input", { type: "file", accept: "image/png,image/jpeg", hidden: true, id: "file" });
  const choose = element("button", { type: "button", textContent: "Choose a picture" });
  const drop = element("div", { className: "drop" }, "Drop a PNG here, or ", choose, file);
  const sigma = element("input", { type: "number", min: 0.002, max: 80, step: "any", id: "own-sigma", disabled: true });
  const noise = element("input", { type: "checkbox", id: "own-noise", disabled: true });
  const estimate = element("button", { type: "button", id: "estimate", textContent: "Estimate", disabled: true });
  root.append(
    element("div", { className: "tools" }, brush, element("label", {}, "dark", tone, "light"), clear), drop,
    element("div", { className: "tools" }, element("label", {}, "noise level σ", sigma), estimate,
      element("label", {}, noise, "it is clean: add this noise")),
    element("p", { className: "quiet", textContent: "Painting sets pixels of the state z at this noise level; every denoiser then goes on from there." }));

  let strokes = new Map(), where = null, estimated = null;
  const active = () => brush.getAttribute("aria-pressed") === "true";
  brush.addEventListener("click", () => brush.setAttribute("aria-pressed", String(!active())));
  clear.addEventListener("click", () => { strokes.clear(); change({ own: null, paint: null, level: Math.min(view.level, about.levels.length - 1) }); });
  choose.addEventListener("click", () => file.click());
  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.toggle("over", kind === "dragover"); });
  }
  drop.addEventListener("drop", (event) => event.dataTransfer.files[0] && take(event.dataTransfer.files[0]));
  sigma.addEventListener("change", again);
  noise.addEventListener("change", again);
  estimate.addEventListener("click", () => { sigma.value = estimated?.toPrecision(3) ?? sigma.value; noise.checked = false; again(); });

  async function take(picture) {
    try {
      const found = await ask("upload", picture);
      estimated = found.sigma;
      change({ own: { picture: found.picture, sigma: Number(found.sigma.toPrecision(3)), noise: false }, paint: null, level: 0 });
    } catch (error) {
      if (!(error instanceof Dropped)) fail(error);
    }
  }

  function again() {
    const value = Number(sigma.value);
    if (!(value >= 0.002 && value <= 80)) { fail(new Error(`σ = ${sigma.value} is not a noise level here; choose one from 0.002 to 80.`)); return; }
    change({ own: { ...view.own, sigma: value, noise: noise.checked }, paint: null, level: 0 });
  }

  // Dots are drawn at once; the denoisers answer when the stroke ends.
  function dot(denoiser, [y, x]) {
    if (where !== null && (where[0] !== denoiser || where[1] !== view.level)) strokes.clear();
    where = [denoiser, view.level];
    strokes.set(`${y} ${x}`, [y, x, Number(tone.value)]);
    const context = pictures().canvas(denoiser).z.canvas.getContext("2d");
    context.fillStyle = `rgb(${Array(3).fill(Math.round(127.5 + 127.5 * tone.value)).join(" ")})`;
    context.fillRect(x, y, 1, 1);
  }

  function done() {
    const before = view.paint ? [...view.paint.strokes] : [];
    const merged = new Map([...before, ...strokes.values()].map((stroke) => [`${stroke[0]} ${stroke[1]}`, stroke]));
    strokes.clear();
    // A path that was painted on begins at the painted level: its level 0 is where painting goes on.
    if (view.paint && view.level > 0) {
      fail(new Error("Painting goes on at the first level of the painted path; move the slider there, or go back to the seed."));
      return;
    }
    const [denoiser, level] = view.paint ? [view.paint.denoiser, view.paint.level] : where;
    change({ paint: { denoiser, level, strokes: [...merged.values()] }, focus: where[0], level: 0 });
  }

  function update() {
    clear.disabled = !view.own && !view.paint;
    for (const one of [sigma, noise, estimate]) one.disabled = !view.own;
    estimate.disabled ||= estimated === null;
    if (view.own) [sigma.value, noise.checked] = [view.own.sigma, view.own.noise];
    brush.style.borderColor = active() ? mark() : "";
  }
  return { active, dot, done, update };
}
