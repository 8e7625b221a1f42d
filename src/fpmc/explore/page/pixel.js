// What a pixel asks: q and r of the estimators that answer for it, and the network's sensitivity beside them.

import { ask, Dropped } from "fpmc/api";
import { decode, digits, element, showHeat } from "fpmc/draw";
import { stepAt } from "fpmc/paths";
import { view } from "fpmc/state";

export function makePixel(root, about, { asked, fail }) {
  const known = new Map();

  async function hover(at) {
    if (!at) return asked(null);
    const sigma = stepAt(at.denoiser)?.sigma ?? about.levels[view.level];
    const body = { denoiser: at.denoiser, sigma, y: at.y, x: at.x };
    const key = JSON.stringify(body);
    try {
      if (!known.has(key)) {
        if (known.size > 500) known.clear();
        known.set(key, await ask("pixel", body));
      }
      draw(at, sigma, known.get(key));
    } catch (error) {
      if (!(error instanceof Dropped) && !about.pixels) fail(error);
    }
    return undefined;
  }

  function draw(at, sigma, found) {
    const { name, analytic } = about.denoisers[at.denoiser];
    const maps = element("div", { className: "maps" });
    const add = (packed, caption) => {
      const canvas = element("canvas", { role: "img", "aria-label": `${caption} for pixel ${at.y}, ${at.x}` });
      showHeat(canvas, decode(packed));
      maps.append(element("figure", {}, canvas, element("figcaption", { textContent: caption })));
    };
    root.replaceChildren(element("p", { className: "quiet", id: "pixel-words", textContent:
      `${name}, row ${at.y}, column ${at.x}, σ = ${sigma.toPrecision(3)}. ` + (analytic
        ? `${found.estimators} estimator${found.estimators === 1 ? "" : "s"} answer, ${digits(found.effective)} in effect; together they ask about ${found.asked.toFixed(0)} pixels.`
        : "A network has no q and r; what it listens to shows in its sensitivity.") }));
    if (analytic) {
      add(found.q, "q: what they ask");
      add(found.r, "r: where they answer");
      asked(decode(found.q));
    }
    if (found.map) add(found.map, `network's sensitivity, σ = ${found.map_sigma.toPrecision(2)}`);
    root.append(maps);
    if (analytic) root.append(table(found));
  }

  function table(found) {
    const rows = found.groups.map((group) => element("tr", {}, element("td", { textContent: `${(100 * group.share).toFixed(1)} %` }),
      element("td", { textContent: group.name }), element("td", { textContent: `${group.estimators} estimators` })));
    if (found.more) rows.push(element("tr", {}, element("td", {}), element("td", { textContent: `and ${found.more} more groups` })));
    return element("table", {}, ...rows);
  }
  return { hover };
}
