// Starting a run from a preset and overrides; a forecast first, without starting anything.

import { asCurl, post } from "./api.js";
import { copyText, el, oneAtATime, problemBox, replace } from "./dom.js";
import { bytes, count, duration } from "./format.js";

const PRESETS = ["demo", "smollm2-135m", "qwen3-8b", "qwen3.6-27b"];

export function startForm() {
  const preset = el("select", { id: "preset" }, ...PRESETS.map((name) => el("option", {}, name)));
  const overrides = el("textarea", { id: "overrides", rows: 2, spellcheck: "false",
    placeholder: "trainer.lr = 1e-3    one key = value a line" });
  const result = el("div", { "aria-live": "polite" });
  const request = () => ({ preset: preset.value, overrides: parseOverrides(overrides.value) });

  const guarded = (action) => oneAtATime(async () => {
    try {
      await action(request());
    } catch (error) {
      replace(result, problemBox(error));
    }
  });
  const start = guarded(async (body) => {
    const run = await post("/v1/runs", body);
    location.hash = `#/runs/${encodeURIComponent(run.id)}`;
  });
  const forecast = guarded(async (body) => {
    const answer = await post("/v1/runs?dry_run=true", body);
    replace(result, forecastBox(answer.forecast));
  });
  const form = el("form", { class: "start" },
    el("div", { class: "field" }, el("label", { for: "preset" }, "Preset"), preset),
    el("div", { class: "field grow" }, el("label", { for: "overrides" }, "Overrides"), overrides),
    el("div", { class: "actions" },
      el("button", { type: "submit", class: "primary", id: "start" }, "Start"),
      el("button", { type: "button", onclick: forecast }, "Forecast"),
      el("button", { type: "button", class: "quiet",
        onclick: guarded((body) => copyText(asCurl("POST", "/v1/runs", body))) }, "Copy as curl")),
    result);
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  return form;
}

/** `key = value` lines to a tree; a value is JSON where it can be read as such, else a string. */
export function parseOverrides(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim() || line.trim().startsWith("#")) continue;
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line.trim()}" is not key = value`);
    const value = line.slice(at + 1).trim();
    try {
      found[line.slice(0, at).trim()] = JSON.parse(value);
    } catch {
      found[line.slice(0, at).trim()] = value.replace(/^'(.*)'$/, "$1");
    }
  }
  return found;
}

function forecastBox(forecast) {
  const rows = [
    ["Samples", count(forecast.num_samples)],
    ["Tokens an epoch", count(Math.round(forecast.tokens_per_epoch))],
    ["Optimizer steps", count(forecast.steps_total)],
    ["Completions on disk", bytes(forecast.completions_bytes)],
    ["Shards on disk", bytes(forecast.shards_bytes)],
    ["Checkpoints on disk", bytes(forecast.checkpoints_bytes)],
    ["Hidden states, had they been stored", bytes(forecast.hidden_states_offline_bytes)],
    ["Drafter parameters", count(Math.round(forecast.drafter_params))],
    ["Training", forecast.train_s === null ? null : duration(forecast.train_s)],
  ].filter(([, value]) => value !== null);
  return el("div", { class: "forecast" },
    el("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    ...forecast.warnings.map((text) => el("p", { class: "warning" }, text)));
}
