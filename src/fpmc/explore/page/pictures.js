// The state and the answer of every denoiser at the present noise level, large, with pixels to point at.

import { element, mark, outline, show } from "fpmc/draw";
import { record } from "fpmc/api";
import { stepAt } from "fpmc/paths";
import { change, view } from "fpmc/state";

const ZOOM = 8;

export function makePictures(root, about, { hover, paint }) {
  const [, height, width] = about.shape;
  const cards = about.denoisers.map(({ name, analytic }, denoiser) => {
    const z = frame(`${name}: noisy state`), x = frame(`${name}: answer`);
    const note = analytic ? "" : "network: no training images inside";
    const card = element("div", { className: "card" },
      element("h3", { textContent: name }, element("small", { textContent: note })),
      element("div", { className: "pair" }, figure(z, "state z"), figure(x, "answer D(z, σ)")));
    root.append(card);
    for (const one of [z, x]) point(one, denoiser, one === z);
    return { card, z, x };
  });
  let hovered = null, box = null, asked = null, lit = null;

  function figure(one, caption) {
    return element("figure", {}, one.frame, element("figcaption", { textContent: caption }));
  }

  function point(one, denoiser, isState) {
    let from = null, cursor = [height >> 1, width >> 1];
    const place = (event) => {
      const { left, top, width: wide, height: high } = one.frame.getBoundingClientRect();
      const inside = (value, most) => Math.min(most - 1, Math.max(0, Math.floor(value)));
      return near([inside(((event.clientY - top) / high) * height, height), inside(((event.clientX - left) / wide) * width, width)]);
    };
    const at = (pixel) => { hovered = { denoiser, y: pixel[0], x: pixel[1] }; hover(hovered); overlay(); };
    one.frame.addEventListener("pointermove", (event) => {
      if (!event.isPrimary) return;                          // a second finger
      const pixel = place(event);
      if (from && isState && paint.active()) paint.dot(denoiser, pixel);
      else if (from && !record) { box = [...order(from, pixel)]; overlay(); }
      at(pixel);
    });
    one.frame.addEventListener("pointerdown", (event) => {
      if (!event.isPrimary || event.button !== 0) return;
      from = place(event);
      one.frame.setPointerCapture(event.pointerId);          // a box may end outside
      if (isState && paint.active()) paint.dot(denoiser, from);
    });
    one.frame.addEventListener("pointerup", (event) => {
      if (!from || !event.isPrimary) return;
      if (isState && paint.active()) paint.done();
      else change({ focus: denoiser, region: order(from, place(event)) });
      from = null; box = null; overlay();
    });
    one.frame.addEventListener("pointercancel", () => { from = null; box = null; overlay(); });
    one.frame.addEventListener("pointerleave", () => {
      if (!from) { hovered = null; asked = null; hover(null); overlay(); }
    });
    one.frame.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move && event.key !== "Enter") return;
      event.preventDefault(); event.stopPropagation();
      if (move) {
        cursor = [(cursor[0] + move[0] + height) % height, (cursor[1] + move[1] + width) % width];
        at(near(cursor));
      } else change({ focus: denoiser, region: order(near(cursor), near(cursor)) });
    });
  }

  // An exported page knows some pixels only.
  function near([y, x]) {
    if (!about.pixels) return [y, x];
    const closest = (list, at) => list.reduce((best, value) => (Math.abs(value - at) < Math.abs(best - at) ? value : best));
    return [closest(about.pixels[0], y), closest(about.pixels[1], x)];
  }

  function overlay() {
    cards.forEach(({ card, z, x }, denoiser) => {
      card.classList.toggle("focus", denoiser === view.focus);
      for (const one of [z, x]) {
        const region = box ?? (denoiser === view.focus ? view.region : null);
        const context = reset(one.over);
        if (one === z && asked && hovered?.denoiser === denoiser) outline(one.over, asked, mark(), ZOOM);
        if (one === x && lit && denoiser === view.focus) outline(one.over, lit, mark(), ZOOM);
        if (hovered) square(context, [hovered.y, hovered.x, hovered.y, hovered.x], "#fff", "#000");
        if (region) square(context, region, mark(), "#000");
      }
    });
  }

  function reset(over) {
    [over.width, over.height] = [width * ZOOM, height * ZOOM];
    return over.getContext("2d");
  }

  function update(denoiser = null) {
    cards.forEach((card, index) => {
      if (denoiser !== null && index !== denoiser) return;
      const step = stepAt(index);
      card.card.classList.toggle("busy", !step);
      if (step) { show(card.z.canvas, step.z, true); show(card.x.canvas, step.x); }
    });
    overlay();
  }

  return {
    update,
    asked: (array) => { asked = array; overlay(); },
    lit: (array) => { lit = array; overlay(); },
    canvas: (denoiser) => cards[denoiser],
  };
}

const order = ([y0, x0], [y1, x1]) => [Math.min(y0, y1), Math.min(x0, x1), Math.max(y0, y1), Math.max(x0, x1)];

function square(context, [top, left, bottom, right], color, shade) {
  for (const [stroke, width] of [[shade, 5], [color, 2.5]]) {
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.strokeRect(left * ZOOM, top * ZOOM, (right - left + 1) * ZOOM, (bottom - top + 1) * ZOOM);
  }
}

function frame(label) {
  const canvas = element("canvas"), over = element("canvas", { className: "over" });
  const box = element("div", { className: "frame", tabIndex: 0, role: "img" }, canvas, over);
  box.setAttribute("aria-label", `${label}. Arrows move the pixel, Enter asks who made it.`);
  return { frame: box, canvas, over };
}
