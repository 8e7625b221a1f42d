// The training images that made the chosen pixels, largest share first; ticked ones can be left out.

import { ask, Dropped, record } from "fpmc/api";
import { decode, digits, element, mark, outline, picture, showHeat } from "fpmc/draw";
import { stepAt } from "fpmc/paths";
import { change, start, view } from "fpmc/state";

const TOP = 16;
export const percent = (share) => `${(100 * share).toFixed(2)} %`;

export function makeShares(root, about, { lit, fail, ticked }) {
  let timer, found = null, shownFor = "";
  const ticks = new Set();

  // Asked when the state is there; a slider that moves on asks only where it stops.
  function update() {
    clearTimeout(timer);
    timer = setTimeout(load, 60);
  }

  async function load() {
    const { name, analytic } = about.denoisers[view.focus];
    if (!analytic) {
      found = null; shownFor = "";
      root.replaceChildren(element("p", { id: "no-shares", textContent:
        `${name} is a network: it holds no training images, so there is nobody to credit. Click the answer of an analytic denoiser.` }));
      return;
    }
    const body = { denoiser: view.focus, start: start(), level: view.level, region: view.region, top: TOP };
    const key = JSON.stringify(body);
    if (!stepAt(view.focus) || key === shownFor) return;
    root.classList.add("busy");
    try {
      found = await ask("shares", body);
      found.images = found.images.filter((row) => row.speaks);
      shownFor = key;
      draw(name);
      root.classList.remove("busy");
    } catch (error) {
      if (error instanceof Dropped) return;
      root.classList.remove("busy");
      root.replaceChildren(element("p", { className: "quiet", textContent: error.message }));
      if (!record) fail(error);
    }
  }

  function draw(name) {
    const where = !view.region ? "the whole answer"
      : view.region[0] === view.region[2] && view.region[1] === view.region[3] ? `row ${view.region[0]}, column ${view.region[1]}`
      : `rows ${view.region[0]} to ${view.region[2]}, columns ${view.region[1]} to ${view.region[3]}`;
    const whole = element("button", { type: "button", textContent: "Whole answer", disabled: !view.region, id: "whole" });
    whole.addEventListener("click", () => change({ region: null }));
    const listed = found.images.reduce((sum, row) => sum + row.shown, 0);
    root.replaceChildren(
      element("div", { className: "tools" }, element("span", { id: "shares-where", textContent: `${name}, ${where}, σ = ${found.sigma.toPrecision(3)}` }), whole),
      element("p", { className: "quiet", id: "effective", textContent: found.gaussian >= 1 ? "A Gaussian answers alone; no single image does."
        : `${digits(found.effective)} of ${found.count.toLocaleString("en")} images in effect (1 / Σ share²).` }),
      bar(), element("p", { className: "key" },
        element("span", { textContent: `the ${found.images.length} below ${percent(listed)}` }),
        element("span", { className: "rest", id: "others", textContent: `other images ${percent(found.shown_others)}` }),
        element("span", { className: "gauss", id: "gaussian", textContent: `Gaussian ${percent(found.shown_gaussian)}` })),
      element("ul", { className: "people" }, ...found.images.map(one)));
  }

  function bar() {
    const part = (share, className = "") => {
      const made = element("i", { className });
      made.style.width = `${100 * share}%`;
      return made;
    };
    const made = element("div", { className: "bar", role: "img" }, ...found.images.map((row) => part(row.shown)),
      part(found.shown_others, "rest"), part(found.shown_gaussian, "gauss"));
    made.setAttribute("aria-label", "shares of the answer; they add up to 1");
    return made;
  }

  function one(row, place) {
    const map = decode(row.map), words = `${row.word ?? "image"} ${row.id}`;
    const seen = element("canvas", { role: "img", "aria-label": `where ${words} speaks` });
    showHeat(seen, map);
    const over = element("canvas", { className: "over" });
    outline(over, map, mark());
    const shown = element("div", { className: "frame" }, picture(decode(row.pixels), `training image ${words}`), over);
    const tick = element("input", { type: "checkbox", checked: ticks.has(row.id), hidden: Boolean(record) });
    tick.addEventListener("change", () => { tick.checked ? ticks.add(row.id) : ticks.delete(row.id); ticked([...ticks]); });
    const item = element("li", {}, element("div", { className: "pair" }, shown, seen),
      element("label", {}, tick, element("b", { className: "share", textContent: percent(row.shown) })),
      element("span", { className: "who", textContent: `${row.word ? `${row.word}, ` : ""}id ${row.id}${row.copy ? `, copy in ${row.set}` : ""}` }));
    tick.setAttribute("aria-label", `number ${place + 1}: leave out ${words}`);
    for (const event of ["pointerenter", "focusin"]) item.addEventListener(event, () => lit(map));
    for (const event of ["pointerleave", "focusout"]) item.addEventListener(event, () => lit(null));
    return item;
  }

  return { update, found: () => found, tick: (ids) => { ticks.clear(); ids.forEach((id) => ticks.add(id)); ticked([...ticks]); shownFor = ""; } };
}
