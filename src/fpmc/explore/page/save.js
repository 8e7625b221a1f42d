// The link, the picture and the data of the present view.

import { record } from "fpmc/api";
import { decode, show, showHeat } from "fpmc/draw";
import { stepAt } from "fpmc/paths";
import { percent } from "fpmc/shares";
import { toFragment, view } from "fpmc/state";

const [CELL, GAP, TEXT] = [120, 12, 34];

export function wireSave(about, shares, say, fail) {
  const on = (id, action) => document.getElementById(id).addEventListener("click", () => Promise.resolve(action()).catch(fail));
  on("copy-link", async () => {
    const link = `${location.href.split("#")[0].split("?")[0]}#${toFragment()}`;
    history.replaceState(null, "", `#${toFragment()}`);
    try { await navigator.clipboard.writeText(link); say("The link is copied."); } catch { say("The address of this page is the link."); }
  });
  on("save-png", async () => download(await toPng(sheet(about, shares.found())), "fpmc-view.png"));
  on("save-svg", () => download(new Blob([toSvg(sheet(about, shares.found()))], { type: "image/svg+xml" }), "fpmc-view.svg"));
  on("save-json", () => {
    const data = { view, link: toFragment(), about, sigma: stepAt(view.focus)?.sigma, shares: shares.found() };
    download(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }), "fpmc-view.json");
  });
  if (record) document.getElementById("save-json").textContent = "Data of this view (JSON)";
}

// What the picture shows: canvases and words with their places.
function sheet(about, found) {
  const items = [];
  const add = (draw, x, y, ...lines) => {
    const canvas = document.createElement("canvas");
    draw(canvas);
    items.push({ canvas, x, y });
    lines.forEach((text, index) => items.push({ text, x, y: y + CELL + 14 + 14 * index }));
  };
  items.push({ text: `seed ${view.seed}, σ = ${stepAt(view.focus)?.sigma.toPrecision(3) ?? "…"}, ${about.data}`, x: GAP, y: 20, bold: true });
  let y = 34;
  about.denoisers.forEach(({ name }, index) => {
    const step = stepAt(index), x = GAP + (index % 4) * 2 * (CELL + GAP / 2);
    if (!step) return;
    if (index && index % 4 === 0) y += CELL + TEXT;
    add((canvas) => show(canvas, step.z, true), x, y, `${name}: z`);
    add((canvas) => show(canvas, step.x), x + CELL + 4, y, "D(z, σ)");
  });
  y += CELL + TEXT;
  if (found) {
    items.push({ text: `Who made it: ${about.denoisers[view.focus].name}, ${view.region ? `box ${view.region.join(", ")}` : "whole answer"}; other images ${percent(found.shown_others)}, Gaussian ${percent(found.shown_gaussian)}`, x: GAP, y: y + 4, bold: true });
    found.images.slice(0, 8).forEach((row, place) => {
      const x = GAP + (place % 4) * 2 * (CELL + GAP / 2), top = y + 16 + Math.floor(place / 4) * (CELL + TEXT);
      add((canvas) => show(canvas, decode(row.pixels)), x, top, `${percent(row.shown)}  ${row.word ?? ""} id ${row.id}`);
      add((canvas) => showHeat(canvas, decode(row.map)), x + CELL + 4, top, "where it speaks");
    });
    y += 16 + Math.ceil(Math.min(8, found.images.length) / 4) * (CELL + TEXT);
  }
  return { items, width: GAP + 8 * (CELL + GAP / 2), height: y + GAP };
}

function toPng({ items, width, height }) {
  const page = document.createElement("canvas");
  [page.width, page.height] = [2 * width, 2 * height];
  const context = page.getContext("2d");
  context.scale(2, 2);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.fillStyle = "#1c1d20";
  for (const item of items) {
    if (item.canvas) context.drawImage(item.canvas, item.x, item.y, CELL, CELL);
    else { context.font = `${item.bold ? "bold " : ""}12px sans-serif`; context.fillText(item.text, item.x, item.y, item.bold ? width : CELL); }
  }
  return new Promise((resolve) => page.toBlob(resolve, "image/png"));
}

function toSvg({ items, width, height }) {
  const safe = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const parts = items.map((item) => item.canvas
    ? `<image x="${item.x}" y="${item.y}" width="${CELL}" height="${CELL}" style="image-rendering:pixelated" href="${item.canvas.toDataURL()}"/>`
    : `<text x="${item.x}" y="${item.y}" font-family="sans-serif" font-size="12"${item.bold ? ' font-weight="bold"' : ""}>${safe(item.text)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><rect width="100%" height="100%" fill="#fff"/>${parts.join("")}</svg>`;
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}
