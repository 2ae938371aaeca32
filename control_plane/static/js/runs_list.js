// All runs, newest first, and the form that starts one. Asked again every two seconds.

import { asCurl, list } from "./api.js";
import { el, replace, toast } from "./dom.js";
import { count, dateTime, decimal, duration, ktok, toldReason } from "./format.js";
import { patch } from "./patch.js";
import { startForm } from "./start_form.js";

const EVERY_MS = 2000;
const LIMIT_MS = 8000;
const HEAD = ["Run", "State", "Step", "Ktok/s trained", "Loss", "Acceptance", "Time left", "Created"];

export async function showRunsList(content, setLinkState) {
  const body = el("tbody", {});
  const empty = el("div", { class: "empty", hidden: true }, el("p", {}, "No runs yet."),
    el("p", {}, "Start one above, or from a terminal:"),
    el("pre", {}, asCurl("POST", "/v1/runs", { preset: "demo" })));
  const table = el("div", { class: "scroll" }, el("table", { class: "runs" },
    el("thead", {}, el("tr", {}, ...HEAD.map((title) => el("th", { scope: "col" }, title)))), body));
  replace(content, el("section", { class: "panel" }, el("h1", {}, "Start a run"), startForm()),
    el("section", { class: "panel" }, el("h2", {}, "Runs"), table, empty));
  document.title = "dflash-mesh";
  let failures = 0;
  let asking = false;

  async function refresh() {
    if (asking) return;
    asking = true;
    try {
      const runs = await list("/v1/runs", 200, LIMIT_MS);
      failures = 0;
      setLinkState("");
      empty.hidden = runs.length > 0;
      table.hidden = runs.length === 0;
      patch(body, runs.map(row));
    } catch (error) {
      if (error.status === 401) return;
      failures += 1;
      setLinkState("away", error.message);
      if (failures === 1) toast(error.message, true);
    } finally {
      asking = false;
    }
  }

  await refresh();
  const timer = setInterval(refresh, EVERY_MS);
  return () => clearInterval(timer);
}

function row(run) {
  const { step, steps_total: total } = run.progress;
  const figure = (title, text) => el("td", { class: "number", "data-title": title }, text);
  return el("tr", { "data-key": run.id },
    el("th", { scope: "row" }, el("a", { href: `#/runs/${encodeURIComponent(run.id)}` }, run.name),
      el("small", {}, run.id)),
    el("td", {}, statePill(run.state), toldReason(run) ? el("small", { class: "reason" }, toldReason(run)) : null),
    figure(HEAD[2], total ? `${count(step)} / ${count(total)}` : "\u2013"),
    figure(HEAD[3], ktok(run.throughput.trained_tokens_per_s)),
    figure(HEAD[4], decimal(run.loss)),
    figure(HEAD[5], decimal(run.acceptance_length, 2)),
    figure(HEAD[6], run.state === "running" ? duration(run.eta_s) : ""),
    el("td", { "data-title": HEAD[7] }, dateTime(run.created_at)));
}

export function statePill(state) {
  return el("span", { class: `pill ${state}` }, state);
}
