// A row for each denoiser: the states above, the answers below, one column for each noise level.

import { element, toImageData } from "fpmc/draw";
import { paths } from "fpmc/paths";
import { change, view } from "fpmc/state";

const GAP = 2;

export function makeStrip(root, about) {
  const [, height, width] = about.shape;
  const rows = about.denoisers.map(({ name }) => makeRow(root, name, height, width));
  const extra = makeRow(root, "without the ticked images", height, width);
  extra.box.parentElement.hidden = true;

  function drawStep(row, steps, level) {
    const step = steps?.[level];
    const at = level * (width + GAP);
    if (!step) return;
    row.context.putImageData(toImageData(step.z, true), at, 0);
    row.context.putImageData(toImageData(step.x), at, height + GAP);
  }

  function fill(row, steps) {
    const count = paths.levels.length || about.levels.length;
    const wanted = count * (width + GAP) - GAP;
    if (row.canvas.width !== wanted) row.canvas.width = wanted;
    else row.context.clearRect(0, 0, row.canvas.width, row.canvas.height);
    steps?.forEach((_, level) => drawStep(row, steps, level));
    now();
  }

  function now() {
    const count = paths.levels.length || about.levels.length;
    for (const row of [...rows, extra]) {
      row.now.style.left = `${(100 * view.level) / count}%`;
      row.now.style.width = `${100 / count}%`;
    }
  }

  function update(denoiser, level) {
    extra.box.parentElement.hidden = !paths.without;
    if (level === null || level === 0) {                     // another start: as many columns as it has levels
      rows.forEach((row, index) => fill(row, paths.rows[index]));
      fill(extra, paths.without);
    } else if (denoiser === "without") drawStep(extra, paths.without, level);
    else drawStep(rows[denoiser], paths.rows[denoiser], level);
  }
  return { update, now };
}

function makeRow(root, name, height, width) {
  const canvas = element("canvas", { height: 2 * height + GAP, width, role: "img" });
  canvas.setAttribute("aria-label", `${name}: states and answers from strong noise to none`);
  const now = element("div", { className: "now" });
  const box = element("div", { className: "strip-box" }, canvas, now);
  root.append(element("div", { className: "strip-row" }, element("span", { className: "name", textContent: name }), box));
  const pick = (event) => {
    const count = paths.levels.length || 1;
    const { left, width: wide } = box.getBoundingClientRect();
    change({ level: Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - left) / wide) * count))) });
  };
  box.addEventListener("pointerdown", pick);
  box.addEventListener("pointermove", (event) => event.buttons === 1 && pick(event));
  return { box, canvas, now, context: canvas.getContext("2d") };
}
