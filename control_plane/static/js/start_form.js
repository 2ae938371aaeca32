// Starting a run from a preset and overrides; a forecast first, without starting anything.

import { ApiError, asCurl, post } from "./api.js";
import { copyText, el, oneAtATime, problemBox, replace } from "./dom.js";
import { ACCELERATORS, forecastBox } from "./forecast.js";

const PRESETS = ["demo", "smollm2-135m", "qwen3-8b", "qwen3.6-27b"];

export function startForm() {
  const preset = el("select", { id: "preset" }, ...PRESETS.map((name) => el("option", {}, name)));
  const overrides = el("textarea", { id: "overrides", rows: 2, spellcheck: "false",
    placeholder: "trainer.lr = 1e-3    one key = value a line" });
  const accelerator = el("select", { id: "accelerator" },
    ...ACCELERATORS.map((name) => el("option", { value: name }, name || "sizes only")));
  const result = el("div", { "aria-live": "polite" });
  // What was said about another request is not said about this one.
  const changed = () => replace(result);
  for (const field of [preset, overrides, accelerator]) field.addEventListener("input", changed);
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
    const gpus = accelerator.value ? [accelerator.value] : [];
    const answer = await post("/v1/plan", { ...body, gpus });
    replace(result, forecastBox(answer.forecasts[0]));
  });
  const form = el("form", { class: "start" },
    el("div", { class: "field" }, el("label", { for: "preset" }, "Preset"), preset),
    el("div", { class: "field grow" }, el("label", { for: "overrides" }, "Overrides"), overrides),
    el("div", { class: "field short" }, el("label", { for: "accelerator" }, "Forecast for"), accelerator),
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
    if (at < 1) throw new ApiError(`"${line.trim()}" is not key = value, such as trainer.lr = 1e-3`, { title: "An override cannot be read" });
    const value = line.slice(at + 1).trim();
    try {
      found[line.slice(0, at).trim()] = JSON.parse(value);
    } catch {
      found[line.slice(0, at).trim()] = value.replace(/^'(.*)'$/, "$1");
    }
  }
  return found;
}
