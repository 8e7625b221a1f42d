// The paths of all denoisers from the present start, filled level by level as the server works them out.

import { Dropped, record, stream } from "fpmc/api";
import { decode } from "fpmc/draw";
import { start, view } from "fpmc/state";

export const paths = { levels: [], rows: [], without: null };  // a row: steps by level; without: that of the knock-out
const listeners = [];
export const onStep = (listener) => listeners.push(listener);
const tell = (denoiser, level) => listeners.forEach((listener) => listener(denoiser, level));

async function follow(body, channel, row, fail, name) {
  try {
    await stream("path", body, channel, (step) => {
      paths.levels = step.levels;
      row[step.level] = { sigma: step.sigma, z: decode(step.z), x: decode(step.x) };
      tell(name, step.level);
    });
  } catch (error) {
    if (!(error instanceof Dropped)) fail(error);
  }
}

export function restart(about, fail) {
  paths.levels = [];
  paths.rows = about.denoisers.map((_, denoiser) => {
    const row = [];
    queueMicrotask(() => follow({ denoiser, start: start(), without: [] }, `path${denoiser}`, row, fail, denoiser));
    return row;
  });
  tell(null, null);
}

export function knockOut(fail) {
  paths.without = null;
  if (!view.without.length || record) return;
  paths.without = [];
  follow({ denoiser: view.focus, start: start(), without: view.without }, "path-without", paths.without, fail, "without");
}

export const stepAt = (denoiser, level = view.level) => paths.rows[denoiser]?.[level];
