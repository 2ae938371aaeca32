// The workers of a run: who they are, how fresh they are, how often they were started again.

import { el } from "./dom.js";
import { bytes, percent } from "./format.js";
import { patch } from "./patch.js";

const HEAD = ["Worker", "State", "Host", "Pid", "Device", "Busy", "Memory", "Heartbeat", "Restarts", "Last error"];

export function workersTable() {
  const body = el("tbody", {});
  const node = el("section", { class: "panel" }, el("h2", {}, "Workers"),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ...HEAD.map((title) => el("th", { scope: "col" }, title)))), body)));
  let workers = [];
  let receivedAt = 0;

  function update(now) {
    workers = now;
    receivedAt = Date.now();
    draw();
  }
  function draw() {
    if (!workers.length) {
      patch(body, [el("tr", {}, el("td", { colspan: HEAD.length, class: "empty" }, "No workers are running."))]);
      return;
    }
    const sinceS = (Date.now() - receivedAt) / 1000;
    patch(body, workers.map((worker) => row(worker, sinceS)));
  }
  const timer = setInterval(draw, 1000);
  return { node, update, close: () => clearInterval(timer) };
}

function row(worker, sinceS) {
  const gone = worker.state === "exited" || worker.state === "failed";
  const age = worker.heartbeat_age_s === null ? null : worker.heartbeat_age_s + sinceS;
  const gpu = worker.metrics.gpu_utilisation;
  const busy = worker.metrics.busy_share;
  return el("tr", { class: gone ? "gone" : "", "data-key": worker.id,
    "data-worker": `${worker.role}-${worker.rank}`, "data-pid": worker.pid },
    el("th", { scope: "row" }, `${worker.role} ${worker.rank}`),
    el("td", {}, el("span", { class: `pill ${worker.state}` }, worker.state)),
    el("td", {}, worker.host), el("td", { class: "number" }, worker.pid),
    el("td", {}, worker.device, gpu === undefined ? null : el("small", {}, ` GPU ${percent(gpu)}`)),
    el("td", { class: "number" }, gone || busy === undefined ? "" : percent(busy)),
    el("td", { class: "number" }, gone || !worker.metrics.rss_bytes ? "" : bytes(worker.metrics.rss_bytes)),
    el("td", { class: `number ${!gone && age > 10 ? "late" : ""}` }, gone || age === null ? "" : `${age.toFixed(0)} s`),
    el("td", { class: "number restarts" }, worker.restarts),
    el("td", { class: "error-text" }, worker.last_error ?? ""));
}
