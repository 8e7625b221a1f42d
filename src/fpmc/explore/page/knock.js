// The counterfactual: the same noise as if the ticked images had never been there.

import { ask, Dropped } from "fpmc/api";
import { decode, element, picture } from "fpmc/draw";
import { paths, stepAt } from "fpmc/paths";
import { change, start, view } from "fpmc/state";

export function makeKnock(root, about, { fail }) {
  const out = element("button", { type: "button", id: "leave-out", className: "main", disabled: true, textContent: "Leave out ticked images" });
  const back = element("button", { type: "button", id: "bring-back", disabled: true, textContent: "Bring them back" });
  const shown = element("div", { id: "knocked" });
  root.append(element("p", { className: "quiet", textContent: "Tick training images, and see the answer and the sample as if they had never been there." }),
    element("div", { className: "tools" }, out, back), shown);
  let ticks = [], answer = null, shownFor = "";
  out.addEventListener("click", () => change({ without: [...ticks] }));
  back.addEventListener("click", () => change({ without: [] }));

  async function update() {
    back.disabled = !view.without.length;
    if (!view.without.length) { answer = null; shownFor = ""; shown.replaceChildren(); return; }
    const body = { denoiser: view.focus, start: start(), level: view.level, without: view.without };
    const key = JSON.stringify(body);
    if (!stepAt(view.focus)) return;
    if (key === shownFor) { draw(); return; }
    try {
      answer = await ask("answer", body);
      shownFor = key;
      draw();
    } catch (error) {
      if (!(error instanceof Dropped)) fail(error);
    }
  }

  function draw() {
    if (!answer) return;
    const last = (steps) => steps?.[paths.levels.length - 1]?.x;
    const cell = (array, caption) => element("figure", {}, array ? picture(array, caption) : element("span", { textContent: "…" }),
      element("figcaption", { textContent: caption }));
    shown.replaceChildren(
      element("div", { className: "four" }, cell(decode(answer.before), "answer"), cell(decode(answer.after), "answer without"),
        cell(last(paths.rows[view.focus]), "sample"), cell(last(paths.without), "sample without")),
      element("p", { className: "quiet", id: "change", textContent:
        `${view.without.length} image${view.without.length === 1 ? "" : "s"} left out: the answer at σ = ${answer.sigma.toPrecision(3)} moves by ${answer.change.toPrecision(3)} (root mean square, images in [−1, 1]).` }));
  }

  return {
    update, draw,
    ticked: (ids) => {
      ticks = ids;
      out.disabled = !ids.length;
      out.textContent = ids.length ? `Leave out ${ids.length} ticked image${ids.length === 1 ? "" : "s"}` : "Leave out ticked images";
    },
  };
}
