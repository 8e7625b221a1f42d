// Puts the views together: who listens to what, the controls, the keys, and words for what goes wrong.

import { ask, record } from "fpmc/api";
import { makeCurves } from "fpmc/curves";
import { makeKnock } from "fpmc/knock";
import { makeOwn } from "fpmc/own";
import { knockOut, onStep, paths, restart } from "fpmc/paths";
import { makePictures } from "fpmc/pictures";
import { makePixel } from "fpmc/pixel";
import { wireSave } from "fpmc/save";
import { makeShares } from "fpmc/shares";
import { change, fromFragment, onChange, view } from "fpmc/state";
import { makeStrip } from "fpmc/strip";

const find = (id) => document.getElementById(id);

function fail(error) {
  find("error").querySelector("p").textContent = error.message;
  find("error").hidden = false;
}

function say(text) {
  find("said").textContent = text;
  setTimeout(() => { find("said").textContent = ""; }, 4000);
}

function wireNotes() {
  find("error").querySelector("button").addEventListener("click", () => { find("error").hidden = true; });
  const seen = () => { try { return localStorage.getItem("fpmc-hint"); } catch { return null; } };
  find("hint").hidden = Boolean(seen());
  find("hint-close").addEventListener("click", () => {
    find("hint").hidden = true;
    try { localStorage.setItem("fpmc-hint", "seen"); } catch { /* a page from a file may keep nothing */ }
  });
  find("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}

function wireControls(about) {
  const most = () => (paths.levels.length || about.levels.length) - 1;
  const seeds = about.seeds;                                // of an exported page: those it knows
  const seedBy = (step) => {
    if (!seeds) return Math.min(2 ** 32 - 1, Math.max(0, view.seed + step));
    return seeds[(seeds.indexOf(view.seed) + step + seeds.length) % seeds.length];
  };
  find("level").addEventListener("input", (event) => change({ level: Number(event.target.value) }));
  find("seed").addEventListener("change", (event) => {
    const seed = Number(event.target.value);
    if (Number.isInteger(seed) && seed >= 0 && seed < 2 ** 32 && (!seeds || seeds.includes(seed))) change({ seed });
    else { fail(new Error(`Seed ${event.target.value} is not here; choose ${seeds ? seeds.join(", ") : "a whole number from 0 to 4294967295"}.`)); event.target.value = view.seed; }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, .frame") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], seed = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (step) change({ level: Math.min(most(), Math.max(0, view.level + step)) });
    else if (seed) change({ seed: seedBy(seed) });
    else if (event.key === " " && !event.target.closest("button, summary")) find("play").click();
    else return;
    event.preventDefault();
  });
  let timer = null;
  find("play").addEventListener("click", () => {
    const playing = timer === null;
    find("play").setAttribute("aria-pressed", String(playing));
    find("play").textContent = playing ? "❚❚ Pause" : "▶ Play";
    if (!playing) { clearInterval(timer); timer = null; return; }
    timer = setInterval(() => change({ level: view.level >= most() ? 0 : view.level + 1 }), 350);
  });
  return () => {
    const levels = paths.levels.length ? paths.levels : about.levels;
    find("level").max = levels.length - 1;
    find("level").value = view.level;
    find("seed").value = view.seed;
    const sigma = levels[Math.min(view.level, levels.length - 1)];
    find("sigma").textContent = `σ = ${sigma.toPrecision(3)}, level ${view.level + 1} of ${levels.length}`;
    find("level").setAttribute("aria-valuetext", find("sigma").textContent);
  };
}

function wireViews(about) {
  const own = makeOwn(find("own"), about, { fail, pictures: () => pictures });
  const pixel = makePixel(find("pixel"), about, { asked: (array) => pictures.asked(array), fail });
  const pictures = makePictures(find("pictures"), about, { hover: pixel.hover, paint: own });
  const knock = makeKnock(find("knock"), about, { fail });
  const shares = makeShares(find("shares"), about, { lit: pictures.lit, fail, ticked: knock.ticked });
  const strip = makeStrip(find("strip"), about);
  const curves = makeCurves(find("curves"), about, { fail });
  const controls = wireControls(about);
  wireSave(about, shares, say, fail);

  onStep((denoiser, level) => {
    strip.update(denoiser, level);
    if (level === null || level === 0) controls();
    if (denoiser === "without") { knock.draw(); return; }
    if (level === view.level || level === null) pictures.update(denoiser);
    if (denoiser === view.focus && level === view.level) { shares.update(); knock.update(); }
    if (denoiser === view.focus && level === paths.levels.length - 1) knock.draw();
  });
  const afresh = () => { restart(about, fail); knockOut(fail); };
  onChange((changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    controls();
    if (has("seed", "own", "paint")) afresh();
    else if (has("without", "focus")) { knockOut(fail); strip.update(null, null); }
    strip.now();
    pictures.update();
    shares.update();
    knock.update();
    own.update();
    if (has("seed", "focus")) curves.update();
  });
  afresh();
  shares.tick(view.without);
  own.update();
  controls();
  curves.update();
}

async function begin() {
  wireNotes();
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);   // the token is a cookie now
  const about = await ask("about");
  find("data").textContent = about.data + (record ? ", a record of some views" : "");
  document.body.classList.toggle("record", Boolean(record));
  for (const id of ["knock-section", "own-section"]) find(id).hidden = Boolean(record);
  change(fromFragment(location.hash, about));
  wireViews(about);
  window.addEventListener("hashchange", () => change(fromFragment(location.hash, about)));
  document.body.dataset.ready = "yes";
}

begin().catch(fail);
