// What a run will need: every row of `dflash-mesh plan`, for the accelerator asked for.

import { el } from "./dom.js";
import { bytes, count, duration, ktok } from "./format.js";

/** Names of the table that `plan` knows; empty means sizes only. */
export const ACCELERATORS = ["", "h200", "h100", "b200", "rtx-pro-6000", "a100", "l40s"];

const rounded = (value) => (value >= 1e9 ? `${(value / 1e9).toFixed(2)} B` : count(Math.round(value)));
const rate = (value) => `${ktok(value)} Ktok/s`;
const ROWS = [
  ["Samples", "num_samples", rounded],
  ["Tokens a sample", "tokens_per_sample", rounded],
  ["Tokens an epoch", "tokens_per_epoch", rounded],
  ["Optimizer steps", "steps_total", rounded],
  ["Completions on disk", "completions_bytes", bytes],
  ["Shards on disk", "shards_bytes", bytes],
  ["Checkpoints on disk", "checkpoints_bytes", bytes],
  ["Hidden states, had they been stored", "hidden_states_offline_bytes", bytes],
  ["Hidden states on the links, a second", "link_bytes_per_s", bytes],
  ["Sockets for them", "link_sockets", rounded],
  ["Drafter parameters", "drafter_params", rounded],
  ["Target weights in memory", "target_memory_bytes", bytes],
  ["Trainer in memory", "trainer_memory_bytes", bytes],
  ["target_forward, each", "target_tokens_per_s", rate],
  ["drafter_trainer, each", "trainer_tokens_per_s", rate],
  ["Target GPUs that feed one trainer", "targets_per_trainer", (value) => value.toFixed(2)],
  ["Slower of the two", "bottleneck", String],
  ["Generation", "generate_s", duration],
  ["Training", "train_s", duration],
  ["GPUs", "num_gpus", rounded],
  ["Cost", "cost_usd", (value) => `$${value >= 1 ? rounded(value) : value.toFixed(2)}`],
];

// Without an accelerator there is no pace, and what follows from it would read as zero.
const WITH_GPU = new Set(["link_bytes_per_s", "link_sockets", "num_gpus"]);

export function forecastBox(forecast) {
  const rows = ROWS.filter(([, key]) => forecast[key] !== null && (forecast.gpu || !WITH_GPU.has(key)));
  return el("div", { class: "forecast" },
    el("dl", { class: "facts" }, ...rows.flatMap(([title, key, show]) =>
      [el("dt", {}, title), el("dd", {}, show(forecast[key]))])),
    forecast.gpu ? null : el("p", { class: "empty" }, "Choose an accelerator for time and cost."),
    ...forecast.warnings.map((text) => el("p", { class: "warning" }, text)));
}
